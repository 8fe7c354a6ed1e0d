package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"rookery/internal/bus"
	"rookery/internal/bus/natsd"
)

// The roles of this program's children, and the variables that tell them.
const (
	roleVariable = "ROOKERY_BENCH_ROLE"
	roleArgument = "ROOKERY_BENCH_ARGUMENT"

	roleEndpoint = "endpoint"
	roleBroker   = "broker"
	roleWorker   = "worker"
)

// A process is a child that said where it is.
type process struct {
	cmd *exec.Cmd
	in  io.Closer // its end is the child's
	url string
}

// spawn starts this program again in a role.
func (b *bench) spawn(role, argument string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self) //nolint:noctx // its input ends it
	cmd.Env = append(os.Environ(), roleVariable+"="+role, roleArgument+"="+argument)
	return launch(cmd)
}

// launch starts a child that writes one line when it is ready.
func launch(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	p := &process{cmd: cmd, in: in, url: strings.TrimSpace(line)}
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// stop ends the child and waits for it.
func (p *process) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// child is main in a role: it says where it is and serves until its input ends.
func child(role string) error {
	argument := os.Getenv(roleArgument)
	switch role {
	case roleEndpoint:
		return serveEndpoint(argument)
	case roleBroker:
		return serveBroker(argument)
	case roleWorker:
		return serveWorker(argument)
	}
	return fmt.Errorf("no such role: %s", role)
}

func untilInputEnds() { _, _ = io.Copy(io.Discard, os.Stdin) }

// say tells the parent that this child is ready.
func say(line string) error {
	_, err := fmt.Fprintln(os.Stdout, line)
	return err
}

func serveBroker(dir string) error {
	srv, err := natsd.Start(natsd.Options{StoreDir: dir, Port: -1})
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	if err := say(srv.ClientURL()); err != nil {
		return err
	}
	untilInputEnds()
	return nil
}

// serveWorker serves calls at the broker "url root".
func serveWorker(argument string) error {
	url, root, _ := strings.Cut(argument, " ")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b, err := bus.Connect(ctx, bus.Options{Servers: []string{url}})
	if err != nil {
		return err
	}
	defer b.Close()
	w, err := newWorker(b, root, 16, "none") // its calls do nothing
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	whenReady(ctx, w, func() { err = say(string(w.ID())) })
	if err == nil {
		untilInputEnds()
	}
	cancel()
	return errors.Join(err, <-done)
}
