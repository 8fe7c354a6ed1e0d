package worker_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/sandbox"
	"rookery/internal/tool"
	"rookery/internal/worker"
	"rookery/protocol"
)

func TestWorkspace_NamedOnesMustBeAllowed(t *testing.T) {
	b := setup(t)
	base := t.TempDir()
	home := mkdir(t, base, "home")
	project := mkdir(t, home, "project")
	root := filepath.Join(home, "state", "worker")
	store := mkdir(t, home, "store")
	outside := mkdir(t, base, "outside")
	require.NoError(t, os.WriteFile(filepath.Join(home, "file"), nil, 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(project, "out")))
	require.NoError(t, os.Symlink(project, filepath.Join(base, "link")))
	w := b.serve(worker.Config{Root: root, Home: home, Allow: []string{home}, Deny: []string{store}, Host: "here"})

	adopt := func(ref protocol.WorkspaceRef) protocol.ControlReply {
		id := protocol.ID("p-" + protocol.Token(4))
		return b.control(w.ID(), worker.VerbAdopt, protocol.Control{Session: id, Workspace: ref})
	}
	for path, want := range map[string]string{
		home:                          "is or holds the home directory",
		store:                         "lies in " + store + ", which belongs to rookery",
		mkdir(t, store, "sub"):        "lies in " + store,
		root:                          "lies in " + root,
		filepath.Join(root, "ws"):     "lies in " + root,
		filepath.Join(home, "state"):  "holds " + root,
		outside:                       "under none of this worker's allowed directories",
		filepath.Join(project, "out"): "under none of this worker's allowed directories",
		base:                          "under none",
		"/":                           "under none",
		filepath.Join(home, "nosuch"): "no such file",
		filepath.Join(home, "file"):   "not a directory",
		"project":                     "not an absolute path",
		project + "/../../outside":    "under none",
	} {
		r := adopt(protocol.WorkspaceRef{Path: path})
		require.False(t, r.OK, path)
		require.Contains(t, r.Error, want, path)
	}
	require.Contains(t, adopt(protocol.WorkspaceRef{Host: "there", Path: project}).Error, "on host there, this worker on here")

	for _, path := range []string{project, filepath.Join(base, "link"), project + "/"} {
		r := adopt(protocol.WorkspaceRef{Host: "here", Path: path, Epoch: 4})
		require.True(t, r.OK, r.Error)
		require.Equal(t, protocol.WorkspaceRef{Host: "here", Path: project, Worker: w.ID(), Epoch: 4}, r.Workspace)
	}
}

func TestWorkspace_NoneAllowedSaysHow(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{})
	c := command("1-0-1", "pwd")
	c.Workspace.Path = t.TempDir()
	b.dispatch(bus.ToWorker(w.ID()), c)
	res := b.result("1-0-1")
	require.Equal(t, protocol.Failed, res.StopReason)
	require.Contains(t, res.Output, "[tool error] workspace "+c.Workspace.Path+": this worker allows no named workspaces (--allow DIR)")
}

func TestWorkspace_StaysTheSessions(t *testing.T) {
	b := setup(t)
	dir := t.TempDir()
	one, two := mkdir(t, dir, "one"), mkdir(t, dir, "two")
	w := b.serve(worker.Config{Allow: []string{dir}, Host: "here"})
	adopt := func(path string) protocol.ControlReply {
		return b.control(w.ID(), worker.VerbAdopt, protocol.Control{Session: sid, Workspace: protocol.WorkspaceRef{Path: path}})
	}
	require.True(t, adopt(one).OK)
	require.Contains(t, adopt(two).Error, "works in "+one+" here, not in "+two)
	b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "pwd")) // the call need not repeat it
	require.Equal(t, one+"\n", b.result("1-0-1").Output)
	require.True(t, b.control(w.ID(), worker.VerbRelease, protocol.Control{Session: sid}).OK)
	require.True(t, adopt(two).OK)
}

func TestWorkspace_FreshOneIsKnownByItsPath(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{})
	first := b.control(w.ID(), worker.VerbAdopt, protocol.Control{Session: sid})
	require.True(t, first.OK, first.Error)
	again := b.control(w.ID(), worker.VerbAdopt, protocol.Control{Session: sid, Workspace: first.Workspace})
	require.True(t, again.OK, again.Error)
	require.Equal(t, first.Workspace.Path, again.Workspace.Path)
	require.True(t, again.Workspace.Made)
	other := b.control(w.ID(), worker.VerbAdopt, protocol.Control{Session: "s2", Workspace: first.Workspace})
	require.False(t, other.OK, "another session's workspace")
}

// A spy tells which sessions were opened in a workspace of their worker's.
type spy struct {
	sandbox.Backend
	made map[string]bool
}

func (s spy) Open(ctx context.Context, spec sandbox.SessionSpec) (sandbox.Session, error) {
	s.made[spec.ID] = spec.Made
	return s.Backend.Open(ctx, spec)
}

func TestWorkspace_BackendKnowsWhoMadeIt(t *testing.T) {
	b := setup(t)
	dir := t.TempDir()
	s := spy{sandbox.NewNone(tool.Ops()), map[string]bool{}}
	w := b.serve(worker.Config{Backend: s, Allow: []string{dir}})
	require.True(t, b.control(w.ID(), worker.VerbAdopt, protocol.Control{Session: "a"}).OK)
	require.True(t, b.control(w.ID(), worker.VerbAdopt, protocol.Control{Session: "b", Workspace: protocol.WorkspaceRef{Path: dir}}).OK)
	require.True(t, s.made["a"])
	require.False(t, s.made["b"])
}

func TestWorkspace_LostOneIsNotMadeAnew(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{})
	adopt := func(ref protocol.WorkspaceRef) protocol.ControlReply {
		return b.control(w.ID(), worker.VerbAdopt, protocol.Control{Session: sid, Workspace: ref})
	}
	first := adopt(protocol.WorkspaceRef{}).Workspace
	require.True(t, b.control(w.ID(), worker.VerbRelease, protocol.Control{Session: sid}).OK)
	require.NoError(t, os.Remove(first.Path))
	r := adopt(first)
	require.False(t, r.OK)
	require.True(t, r.Gone)
	require.Contains(t, r.Error, "was removed")
	elsewhere := first
	elsewhere.Path = "/elsewhere/ws/s1"
	require.Contains(t, adopt(elsewhere).Error, "was made by worker "+string(w.ID())+" and is not here")
	require.True(t, adopt(protocol.WorkspaceRef{}).OK)
}

func TestWorkspace_UnreadableOneSaysSo(t *testing.T) {
	b := setup(t)
	dir := t.TempDir()
	locked := mkdir(t, dir, "locked")
	require.NoError(t, os.Chmod(locked, 0))
	w := b.serve(worker.Config{Allow: []string{dir}})
	r := b.control(w.ID(), worker.VerbAdopt, protocol.Control{Session: sid, Workspace: protocol.WorkspaceRef{Path: locked}})
	if os.Geteuid() == 0 { // to whom no mode matters
		require.True(t, r.OK, r.Error)
		return
	}
	require.Contains(t, r.Error, "permission denied")
	require.Contains(t, r.Error, locked)
}

func TestControl_ReadsAFileOfTheWorkspace(t *testing.T) {
	b := setup(t)
	dir := t.TempDir()
	ws := mkdir(t, dir, "ws")
	require.NoError(t, os.WriteFile(filepath.Join(ws, "AGENTS.md"), []byte("be brief\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(ws, "huge"), []byte(strings.Repeat("x", 300<<10)), 0o600))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(ws, "link")))
	w := b.serve(worker.Config{Allow: []string{dir}})
	read := func(path string) protocol.ControlReply {
		return b.control(w.ID(), worker.VerbRead, protocol.Control{Session: sid, Path: path, Workspace: protocol.WorkspaceRef{Path: ws}})
	}
	require.Equal(t, "be brief\n", read("AGENTS.md").Content)
	none := read("nosuch.md")
	require.True(t, none.OK, none.Error)
	require.Empty(t, none.Content)
	require.Contains(t, read("huge").Error, "larger than")
	require.Contains(t, read("link").Error, "outside the workspace")
	require.Contains(t, read("../x").Error, "outside the workspace")
	require.Contains(t, read("").Error, "no path")
}

func TestControl_ReleaseEndsTheSession(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{})
	b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "echo kept > f; echo ready; sleep 1000"))
	b.says("ready\n")
	require.DirExists(t, filepath.Join(b.root, "scratch", "s1"))
	require.True(t, b.control(w.ID(), worker.VerbRelease, protocol.Control{Session: sid}).OK)
	require.Equal(t, protocol.Aborted, b.result("1-0-1").StopReason)
	require.NoDirExists(t, filepath.Join(b.root, "scratch", "s1"))
	b.dispatch(bus.ToWorker(w.ID()), command("2-0-1", "cat f"))
	require.Equal(t, "kept\n", b.result("2-0-1").Output)
}

func TestControl_RefusesNonsense(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{})
	for verb, c := range map[string]protocol.Control{"dance": {Session: sid}, worker.VerbCancel: {}, worker.VerbAdopt: {Session: "../x"}} {
		r := b.control(w.ID(), verb, c)
		require.False(t, r.OK)
		require.NotEmpty(t, r.Error)
		require.Equal(t, w.Boot(), r.Boot)
	}
}
