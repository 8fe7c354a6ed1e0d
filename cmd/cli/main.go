// Command rookery is the command line: it runs tasks, acts on sessions and shows them.
package main

import (
	"context"
	"fmt"
	"os"

	"rookery/internal/host"
	"rookery/internal/sandbox/backend"
	"rookery/internal/tool"
)

func main() {
	backend.Main(tool.Ops())
	os.Exit(program())
}

// program runs the command line of this process and returns its exit status.
func program() int {
	a := newApp(os.Stdin, os.Stdout, os.Stderr)
	if err := host.Harden(); err != nil {
		a.notice("%v", err)
	}
	return a.main(context.Background(), os.Args[1:])
}

// main runs one command. Whatever went wrong is one line on stderr.
func (a *app) main(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	a.close()
	if err == nil && a.stdout.err != nil {
		err = fmt.Errorf("write the output: %w", a.stdout.err)
	}
	if err == nil {
		return a.status
	}
	f := faultOf(err)
	if a.json(args) {
		a.lastLine(f)
	}
	if f.text != "" {
		say(a.stderr, "%s\n", "rookery: "+visibleLine(f.text))
	}
	return f.exit()
}
