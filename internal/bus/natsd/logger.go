package natsd

import (
	"fmt"
	"log/slog"
)

// A logger passes the server's messages on.
type logger struct {
	log   *slog.Logger
	fatal chan<- string // capacity 1; the first fatal error
}

func (l *logger) put(level slog.Level, format string, v []any) {
	if l.log != nil {
		l.log.Log(nil, level, "broker", "text", fmt.Sprintf(format, v...)) //nolint:staticcheck // the server has no context
	}
}

func (l *logger) Noticef(format string, v ...any) { l.put(slog.LevelDebug, format, v) }
func (l *logger) Warnf(format string, v ...any)   { l.put(slog.LevelWarn, format, v) }
func (l *logger) Debugf(format string, v ...any)  { l.put(slog.LevelDebug, format, v) }
func (l *logger) Tracef(format string, v ...any)  { l.put(slog.LevelDebug, format, v) }
func (l *logger) Errorf(format string, v ...any)  { l.put(slog.LevelError, format, v) }

// Fatalf keeps the message for Start; it must not end the process.
func (l *logger) Fatalf(format string, v ...any) {
	l.put(slog.LevelError, format, v)
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
	}
}
