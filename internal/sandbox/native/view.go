package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const hostname = "sandbox"

// programs and settings are what a session sees of the host's system, read only.
func programs() []string {
	return []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"}
}

func settings() []string {
	return []string{
		"/etc/alternatives", "/etc/ssl", "/etc/pki", "/etc/crypto-policies", "/etc/ca-certificates", "/etc/ca-certificates.conf",
		"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/mime.types",
		"/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/protocols", "/etc/services", "/etc/debian_version",
		"/etc/os-release", "/etc/lsb-release", "/etc/login.defs", "/etc/inputrc", "/etc/terminfo", "/etc/magic", "/etc/bash.bashrc",
		"/etc/fonts", "/etc/perl", "/etc/python3", "/etc/java-17-openjdk", "/etc/java-21-openjdk", "/etc/X11/rgb.txt",
	}
}

// synthetic are files that a session sees instead of the host's.
func synthetic() map[string]string {
	return map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000:agent:" + homeDir +
			":/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
		"/etc/group":       "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
		"/etc/hosts":       "127.0.0.1 localhost " + hostname + "\n::1 localhost\n",
		"/etc/hostname":    hostname + "\n",
		"/etc/resolv.conf": "",
	}
}

// A view is being built in a file system in memory, which then becomes the root.
type view struct {
	root  string
	trees []mounted
	links map[string]string
}

type mounted struct {
	tree *os.File
	at   string
	dir  bool
}

// makeView builds what the session sees and leaves it as this process's root. All
// of the host's trees are taken before the new root hides them.
func makeView(cfg holderConfig) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	v := &view{root: "/tmp", links: map[string]string{}}
	if _, err := os.Stat(v.root); err != nil {
		v.root = "/mnt"
	}
	defer func() {
		for _, m := range v.trees {
			_ = m.tree.Close()
		}
	}()
	return errors.Join(v.take(cfg), v.build())
}

func (v *view) take(cfg holderConfig) error {
	for _, p := range programs() {
		if err := v.host(p, readOnly); err != nil {
			return err
		}
	}
	for _, p := range settings() {
		if err := v.host(p, readOnly|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return err
		}
	}
	for _, d := range devices() {
		if err := v.host("/dev/"+d, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return err
		}
	}
	if cfg.Trees {
		v.given(cfg)
		return nil
	}
	return v.again(cfg)
}

// given uses the trees that the spawner took.
func (v *view) given(cfg holderConfig) {
	v.add(os.NewFile(fdWorkspace, "workspace"), workspaceDir, true)
	v.add(os.NewFile(fdScratch, "scratch"), scratchDir, true)
	v.add(os.NewFile(fdProgram, "program"), programFile, false)
	for i, p := range cfg.ReadOnly {
		v.add(os.NewFile(uintptr(fdReadOnly+i), p), p, true)
	}
}

// again takes by path what the worker has opened: this user can walk there, but a
// tree can be taken in one's own mount namespace only.
func (v *view) again(cfg holderConfig) error {
	const data = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	for _, p := range []struct {
		path, at string
		fd       int
		set      uint64
		dir      bool
	}{
		{cfg.Workspace, workspaceDir, fdWorkspace, data, true},
		{cfg.Scratch, scratchDir, fdScratch, data, true},
		{cfg.Program, programFile, -1, readOnly, false},
	} {
		tree, err := openTree(unix.AT_FDCWD, p.path, p.set)
		if err != nil {
			return fmt.Errorf("take %s: %w", p.path, err)
		}
		v.add(tree, p.at, p.dir)
		if p.fd < 0 {
			continue
		}
		if err := sameFile(int(tree.Fd()), p.fd); err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
	}
	for _, p := range cfg.ReadOnly {
		if err := v.host(p, readOnly); err != nil {
			return err
		}
	}
	return nil
}

func sameFile(a, b int) error {
	var sa, sb unix.Stat_t
	if err := errors.Join(unix.Fstat(a, &sa), unix.Fstat(b, &sb)); err != nil {
		return err
	}
	if sa.Dev != sb.Dev || sa.Ino != sb.Ino {
		return errors.New("was replaced by another directory")
	}
	return nil
}

func (v *view) add(tree *os.File, at string, dir bool) {
	if below, ok := strings.CutPrefix(at, varTmp+"/"); ok {
		at = filepath.Join(tmpDir, below) // where the view's link leads
	}
	v.trees = append(v.trees, mounted{tree, at, dir})
}

// host takes a path of the host where it exists; a link stays a link.
func (v *view) host(path string, set uint64) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode()&os.ModeSymlink != 0 {
		v.links[path], err = os.Readlink(path)
		return err
	}
	if err != nil {
		return err
	}
	tree, err := openTree(unix.AT_FDCWD, path, set)
	if err != nil {
		return fmt.Errorf("take %s: %w", path, err)
	}
	v.add(tree, path, info.IsDir())
	return nil
}

func (v *view) at(path string) string { return filepath.Join(v.root, path) }

func (v *view) build() error {
	for _, step := range []func() error{v.newRoot, v.files, v.dev, v.memory, v.attach, v.proc, v.pivot} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func mount(fs, at string, flags uintptr, data string) error {
	if err := unix.Mount(fs, at, fs, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", fs, at, err)
	}
	return nil
}

func (v *view) newRoot() error {
	return mount("tmpfs", v.root, unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m,nr_inodes=4096")
}

func (v *view) files() error {
	for _, d := range []string{"/etc", "/proc", "/dev", "/run", "/var", tmpDir, homeDir} {
		if err := os.MkdirAll(v.at(d), 0o755); err != nil {
			return err
		}
	}
	for p, text := range synthetic() {
		if err := v.file(p, text); err != nil {
			return err
		}
	}
	v.links[varTmp], v.links["/etc/mtab"] = tmpDir, "/proc/self/mounts"
	for p, target := range v.links {
		if err := os.MkdirAll(filepath.Dir(v.at(p)), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, v.at(p)); err != nil {
			return err
		}
	}
	return nil
}

func (v *view) file(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(v.at(path)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(v.at(path), []byte(text), 0o644)
}

func devices() []string { return []string{"null", "zero", "full", "random", "urandom", "tty"} }

func (v *view) dev() error {
	if err := mount("tmpfs", v.at("/dev"), unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=64k,nr_inodes=64"); err != nil {
		return err
	}
	for _, d := range []string{"pts", "shm"} {
		if err := os.Mkdir(v.at("/dev/"+d), 0o755); err != nil {
			return err
		}
	}
	links := map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
	for i, n := range []string{"stdin", "stdout", "stderr"} {
		links[n] = "/proc/self/fd/" + strconv.Itoa(i)
	}
	for n, target := range links {
		if err := os.Symlink(target, v.at("/dev/"+n)); err != nil {
			return err
		}
	}
	return mount("devpts", v.at("/dev/pts"), unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
}

func (v *view) attach() error {
	for _, m := range v.trees {
		var err error
		if m.dir {
			err = os.MkdirAll(v.at(m.at), 0o755)
		} else {
			err = v.file(m.at, "")
		}
		if err == nil {
			err = unix.MoveMount(int(m.tree.Fd()), "", unix.AT_FDCWD, v.at(m.at), unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		if err != nil {
			return fmt.Errorf("attach %s: %w", m.at, err)
		}
	}
	return seal(v.at("/dev"), unix.MS_NOSUID|unix.MS_NOEXEC)
}

// memory mounts what the session may write besides its workspace and scratch.
func (v *view) memory() error {
	const home = "mode=1777,size=256m,nr_inodes=100k"
	return errors.Join(
		mount("tmpfs", v.at("/dev/shm"), unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size=64m,nr_inodes=10k"),
		mount("tmpfs", v.at(tmpDir), unix.MS_NOSUID|unix.MS_NODEV, home),
		mount("tmpfs", v.at(homeDir), unix.MS_NOSUID|unix.MS_NODEV, home),
	)
}

func (v *view) proc() error {
	return mount("proc", v.at("/proc"), unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// seal makes one mount read only.
func seal(at string, flags uintptr) error {
	if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, ""); err != nil {
		return fmt.Errorf("make %s read only: %w", at, err)
	}
	return nil
}

func (v *view) pivot() error {
	if err := os.Chdir(v.root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return seal("/", unix.MS_NOSUID|unix.MS_NODEV)
}
