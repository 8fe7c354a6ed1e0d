package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"rookery/client"
	"rookery/internal/host"
	"rookery/protocol"
)

// onSession makes a command that acts on a session; arguments after the id go to do.
// alone lets this process do it where no orchestrator is.
func (a *app) onSession(alone bool, use, short string, argc cobra.PositionalArgs, do func(ctx context.Context, c *client.Client, sid protocol.ID, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: argc,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := a.dial(cmd.Context())
			if err != nil {
				return err
			}
			sid, err := l.session(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if alone {
				return l.act(cmd.Context(), sid, func(ctx context.Context, c *client.Client) error {
					return do(ctx, c, sid, args[1:])
				})
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), commandTimeout)
			defer cancel()
			return do(ctx, l.Client, sid, args[1:])
		},
	}
}

func (a *app) steerCommand() *cobra.Command {
	return a.onSession(false, "steer ID TEXT", "Add a text to the running task", args(2, -1, "the ID of a session and a text"),
		func(ctx context.Context, c *client.Client, sid protocol.ID, args []string) error {
			text := strings.Join(args, " ")
			if err := checkPrompt(text, nil); err != nil {
				return err
			}
			return c.Steer(ctx, sid, text)
		})
}

func (a *app) abortCommand() *cobra.Command {
	return a.onSession(true, "abort ID", "Interrupt the running task or compaction", args(1, 1, "the ID of a session"),
		func(ctx context.Context, c *client.Client, sid protocol.ID, _ []string) error {
			running, err := c.Abort(ctx, sid, "user")
			if err != nil {
				return err
			}
			word := protocol.ReplyIdle
			if running {
				word = protocol.ReplyAborting
			}
			_, err = fmt.Fprintln(a.stdout, word)
			return err
		})
}

func (a *app) approveCommand() *cobra.Command {
	deny, reason := false, ""
	cmd := a.onSession(false, "approve ID CALL", "Decide on a call that waits for a person", args(2, 2, "the ID of a session and of a call"),
		func(ctx context.Context, c *client.Client, sid protocol.ID, args []string) error {
			d := protocol.Allow
			if deny {
				d = protocol.Deny
			}
			return c.Approve(ctx, sid, args[0], d, reason)
		})
	cmd.Flags().BoolVar(&deny, "deny", false, "deny it")
	cmd.Flags().StringVar(&reason, "reason", "", "`why`, for the trace")
	return cmd
}

func (a *app) titleCommand() *cobra.Command {
	return a.onSession(true, "title ID TITLE", "Name a session", args(2, -1, "the ID of a session and a title"),
		func(ctx context.Context, c *client.Client, sid protocol.ID, args []string) error {
			return c.Title(ctx, sid, strings.Join(args, " "))
		})
}

func (a *app) removeCommand() *cobra.Command {
	return a.onSession(true, "rm ID", "Delete a session and its trace", args(1, 1, "the ID of a session"),
		func(ctx context.Context, c *client.Client, sid protocol.ID, _ []string) error {
			return c.Remove(ctx, sid)
		})
}

func (a *app) compactCommand() *cobra.Command {
	return &cobra.Command{
		Use: "compact ID", Short: "Compact the context of an idle session", Args: args(1, 1, "the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			l, err := a.dial(ctx)
			if err != nil {
				return err
			}
			sid, err := l.session(ctx, args[0])
			if err != nil {
				return err
			}
			return l.compact(ctx, sid)
		},
	}
}

// compact starts a compaction and shows it to its end; leaving early aborts it.
func (l *link) compact(ctx context.Context, sid protocol.ID) error {
	t, err := l.beginCompact(ctx, sid)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		actx, cancel := context.WithTimeout(watching, commandTimeout)
		defer cancel()
		if _, err := l.Abort(actx, sid, "user"); err != nil {
			cancel()
		}
	})
	defer stop()
	p := l.app.human(l.cfg)
	for e, err := range l.Follow(watching, t, nil) {
		if err != nil {
			return fmt.Errorf("watch the compaction of session %s: %w", sid, err)
		}
		p.show(e)
		if end, ok := e.Message.Payload.(protocol.TaskEnd); ok {
			l.app.status = protocol.ExitCode(end.Status, end.Code)
		}
	}
	return nil
}

// beginCompact starts it at an orchestrator, or else in this process, which then
// needs a worker for the session's workspace, too.
func (l *link) beginCompact(ctx context.Context, sid protocol.ID) (client.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	t, err := l.Compact(ctx, sid)
	if !isNoOrchestrator(err) || host.Configured(l.cfg) {
		return t, err
	}
	roles := host.Roles{Orchestrator: true, Private: true}
	if e, err := l.Entry(ctx, sid); err == nil && isDir(e.Workspace.Path) {
		roles.Worker, roles.Allow = true, []string{e.Workspace.Path}
	}
	if err := l.assist(ctx, roles); err != nil {
		return t, err
	}
	return l.Compact(ctx, sid)
}
