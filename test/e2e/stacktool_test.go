package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"rookery/internal/engine/enginetest"
	"rookery/internal/tool"
	"rookery/protocol"
)

// scripted are the tools of a scenario: every name that its replies call.
type scripted struct {
	gates *enginetest.Gates
	id    func(key string) string // the call with that key
	die   func()                  // the worker is to die; does not wait for that

	mu    sync.Mutex
	tools map[string]enginetest.Tool
	runs  map[string]int
}

func (x *scripted) set(t enginetest.Tool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tools[t.ID] = t
}

func (x *scripted) ran() map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.runs)
}

func (x *scripted) begin(id string) enginetest.Tool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.runs[id]++
	if t, ok := x.tools[id]; ok {
		return t
	}
	return enginetest.Tool{ID: id, Stop: protocol.Completed}
}

// registry makes the tools that a worker offers.
func (x *scripted) registry(s *enginetest.Scenario, cfg enginetest.Config) (*tool.Registry, error) {
	names := map[string]bool{"t": true}
	for _, r := range s.Replies() {
		for _, it := range r.Items {
			if it.Kind == enginetest.ItemCall && !it.Half {
				names[it.Name] = true
			}
		}
	}
	var tools []tool.Tool
	for _, name := range slices.Sorted(maps.Keys(names)) {
		tools = append(tools, scriptedTool{scripted: x, name: name, timeout: cfg.ToolTimeout, maxOutput: cfg.MaxOutput})
	}
	return tool.NewRegistry(tools...)
}

type scriptedTool struct {
	*scripted
	name      string
	timeout   time.Duration
	maxOutput int
}

func (t scriptedTool) Spec() protocol.Tool {
	ms := t.timeout.Milliseconds()
	if t.timeout < 0 {
		ms = -1
	}
	return protocol.Tool{
		ToolSpec:  protocol.ToolSpec{Name: t.name, Description: "does as the script says", Parameters: json.RawMessage(`{"type":"object"}`)},
		Workspace: true, TimeoutMS: ms, MaxOutput: t.maxOutput,
	}
}

func (t scriptedTool) Run(ctx context.Context, c *tool.Call, w io.Writer) (tool.Report, error) {
	id := t.id(c.Key)
	does := t.begin(id)
	if err := t.pause(ctx, enginetest.Pause{For: latency}); err != nil {
		return tool.Report{}, err
	}
	if does.Output == nil {
		for _, d := range does.Deltas {
			_, _ = io.WriteString(w, d) // writes do not fail
		}
	}
	for _, p := range does.Pauses {
		if err := t.pause(ctx, p); err != nil {
			_ = t.pause(context.WithoutCancel(ctx), enginetest.Pause{For: latency}) // to end takes a moment, too
			return tool.Report{}, err
		}
	}
	switch {
	case does.Die:
		t.die()
		<-ctx.Done()
		return tool.Report{}, context.Cause(ctx)
	case does.None:
	case does.Output != nil:
		_, _ = io.WriteString(w, *does.Output)
	case len(does.Deltas) == 0:
		_, _ = io.WriteString(w, "done "+id)
	}
	switch does.Stop {
	case protocol.Completed:
		return tool.Report{}, nil
	case protocol.Failed:
		return tool.Report{Failed: true}, nil
	default:
	}
	return tool.Report{}, fmt.Errorf("a tool can't end as %s: the file is of level: engine", does.Stop)
}

func (t scriptedTool) pause(ctx context.Context, p enginetest.Pause) error {
	if p.Gate != "" {
		return t.gates.Wait(ctx, p.Gate)
	}
	timer := time.NewTimer(p.For)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errNoSuchAction = errors.New("not an action of this runner")
