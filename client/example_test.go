package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"rookery/client"
	"rookery/internal/bus/bustest"
	"rookery/protocol"
)

// A stage is what an example needs of a test: cleaning up.
type stage struct {
	testing.TB
	cleanups []func()
}

func (s *stage) Helper()                  {}
func (s *stage) Cleanup(f func())         { s.cleanups = append(s.cleanups, f) }
func (s *stage) Context() context.Context { return context.Background() }
func (s *stage) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format, args...)
}
func (s *stage) FailNow() { panic("the example's broker does not start") }

func (s *stage) TempDir() string {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *stage) close() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// start runs a broker with an orchestrator whose model says every prompt back, and
// returns the broker's address.
func start() (address string, stop func()) {
	s := &stage{}
	broker := bustest.NewTCP(s)
	serve(s, broker.Bus(s), true)
	return broker.URL(), s.close
}

// Run a task and stream what the assistant says.
func ExampleClient_Run() {
	address, stop := start()
	defer stop()
	ctx := context.Background()

	c, err := client.Dial(ctx, client.Options{Server: []string{address}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	task, err := c.Run(ctx, client.RunRequest{Prompt: "good morning"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for e, err := range c.Follow(ctx, task, nil) {
		if err != nil {
			fmt.Println(err)
			return
		}
		switch p := e.Message.Payload.(type) {
		case protocol.PartialText:
			fmt.Print(p.Text)
		case protocol.TaskEnd:
			fmt.Println("\n" + p.Status)
		default: // everything else an agent does
		}
	}
	// Output:
	// You said: good morning
	// completed
}

// Watch a session from its beginning, and again from where one was.
func ExampleClient_Watch() {
	address, stop := start()
	defer stop()
	ctx := context.Background()
	c, err := client.Dial(ctx, client.Options{Server: []string{address}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if _, err := c.Run(ctx, client.RunRequest{Session: "greeting", Prompt: "hello"}); err != nil {
		fmt.Println(err)
		return
	}

	var from protocol.Cursor
	for e, err := range c.Watch(ctx, "greeting", &client.WatchOptions{NoPartials: true}) {
		if err != nil || e.Kind == client.CaughtUp {
			break
		}
		if e.Recorded {
			fmt.Println(e.Message)
		}
		if _, ok := e.Message.Payload.(protocol.RequestBegin); ok {
			from = e.Cursor
			break
		}
	}
	fmt.Println("--")
	for e, err := range c.Watch(ctx, "greeting", &client.WatchOptions{From: from, NoPartials: true}) {
		if err != nil || e.Kind == client.CaughtUp {
			break
		}
		fmt.Println(e.Message)
	}
	// Output:
	// +task_begin(run)
	// text[user]"hello"
	// request_begin
	// --
	// text[assistant]"You said: hello"
	// request_end(completed)
	// +task_end(completed)
}

// Every command is answered; a no says why.
func ExampleRefusedError() {
	address, stop := start()
	defer stop()
	ctx := context.Background()
	c, err := client.Dial(ctx, client.Options{Server: []string{address}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if _, err := c.Run(ctx, client.RunRequest{Session: "done", Prompt: "hello"}); err != nil {
		fmt.Println(err)
		return
	}

	err = c.Steer(ctx, "done", "and be brief")
	var refused *client.RefusedError
	if errors.As(err, &refused) && refused.Reply.Code == protocol.ReplyNotRunning {
		fmt.Println("too late:", refused.Reply.Reason)
	}
	// Output:
	// too late: session done runs no task
}
