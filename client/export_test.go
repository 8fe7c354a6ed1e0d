package client

import (
	"context"

	"rookery/internal/bus"
	"rookery/protocol"
)

// Source is what a watch fetches from.
type Source = source

// A Viewer is a watch whose subscription a test plays.
type Viewer struct {
	Shown []Event
	watch *watch
}

// NewViewer joins at a cursor.
func NewViewer(s Source, from protocol.Cursor, ask func(context.Context, int) (protocol.Reply, error)) *Viewer {
	v := &Viewer{}
	v.watch = &watch{source: s, view: newView(from, true), ask: ask, yield: func(e Event, err error) bool {
		v.Shown = append(v.Shown, e)
		return err == nil
	}}
	return v
}

// CatchUp is how a watch begins.
func (v *Viewer) CatchUp(ctx context.Context) error { return v.settle(v.watch.catchUp(ctx)) }

// Take handles one event of the subscription.
func (v *Viewer) Take(ctx context.Context, e bus.Event) error {
	return v.settle(v.watch.take(ctx, e))
}

func (v *Viewer) settle(err error) error {
	if err != nil {
		return err
	}
	return v.watch.deliver()
}

// Kept is how much a viewer holds: open segments, held messages, remembered ends.
func (v *Viewer) Kept() (open, held, ended int) {
	return len(v.watch.view.open), len(v.watch.view.held), len(v.watch.view.ended.at)
}
