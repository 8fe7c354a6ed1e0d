package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox/confine"
)

// Variables that tell the prober what the worker has laid out for it.
const (
	envCanaryFile   = "ROOKERY_CANARY_FILE"
	envCanaryPort   = "ROOKERY_CANARY_PORT"
	envCanarySocket = "ROOKERY_CANARY_SOCKET"
	envCanaryEnv    = "ROOKERY_CANARY_ENV" // set in the worker, not for the call
	envProbe        = "ROOKERY_PROBE"      // what to do: rights, memory, abi
)

// A finding is one line of the self-test. Leak is empty when all is well.
type finding struct {
	What string `json:"what"`
	Leak string `json:"leak,omitempty"`
}

// runProbe runs inside a session as a command would, and tries to get out.
func runProbe() {
	switch os.Getenv(envProbe) {
	case "memory":
		hold(1 << 30)
	case "abi":
		if confine.OtherABIs() {
			os.Exit(1)
		}
	default:
		_ = json.NewEncoder(os.Stdout).Encode(probeRights())
	}
}

// hold takes memory until it is killed, at the latest after some seconds.
func hold(bytes int) {
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return
	}
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1
	}
	<-time.After(5 * time.Second)
}

func probeRights() []finding {
	status := readStatus()
	is := func(field, want string) func() string {
		return func() string {
			if status[field] != want {
				return fmt.Sprintf("%s is %s", field, status[field])
			}
			return ""
		}
	}
	var found []finding
	for _, p := range []struct {
		what string
		do   func() string
	}{
		{"not root outside", probeID},
		{"no capabilities", is("CapEff", "0000000000000000")},
		{"no capabilities to be had", is("CapBnd", "0000000000000000")},
		{"no new privileges", is("NoNewPrivs", "1")},
		{"system calls are filtered", is("Seccomp", "2")},
		{"system calls of other architectures are refused", probeABI},
		{"the host's files are not there", probeFile},
		{"the worker's environment is not there", probeEnv},
		{"the host's network is not there", probePort},
		{"the host's abstract sockets are not there", probeSocket},
		{"other processes are not seen", probePids},
		{"no core dumps", probeCore},
	} {
		found = append(found, finding{p.what, p.do()})
	}
	return found
}

func readStatus() map[string]string {
	b, _ := os.ReadFile("/proc/self/status")
	fields := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}

func probeID() string {
	for _, file := range []string{"uid_map", "gid_map"} {
		b, err := os.ReadFile("/proc/self/" + file)
		f := strings.Fields(string(b))
		if err != nil || len(f) != 3 || f[1] == "0" || f[2] != "1" {
			return fmt.Sprintf("%s is %q", file, b)
		}
	}
	if unix.Setuid(0) == nil {
		return "the user can be changed to 0"
	}
	return ""
}

func probeABI() string {
	pid, err := syscall.ForkExec("/proc/self/exe", []string{marker, "probe"}, &syscall.ProcAttr{
		Env: []string{envProbe + "=abi"}, Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return err.Error()
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return err.Error()
	}
	if status.Exited() && status.ExitStatus() == 1 {
		return "the kernel answers them"
	}
	return ""
}

func probeFile() string {
	if _, err := os.Lstat(os.Getenv(envCanaryFile)); !errors.Is(err, os.ErrNotExist) {
		return fmt.Sprintf("%s: %v", os.Getenv(envCanaryFile), err)
	}
	return ""
}

func probeEnv() string {
	if os.Getenv(envCanaryEnv) != "" {
		return "a variable of the worker is set"
	}
	return ""
}

func probePort() string { return dial("tcp", "127.0.0.1:"+os.Getenv(envCanaryPort)) }

func probeSocket() string { return dial("unix", os.Getenv(envCanarySocket)) }

func dial(network, address string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return ""
	}
	_ = c.Close()
	return "connected to " + address
}

// probePids expects the call's init, this process and perhaps a shell's.
func probePids() string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err.Error()
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != 1 && pid != os.Getpid() {
			return "process " + e.Name() + " is seen"
		}
	}
	return ""
}

func probeCore() string {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil || l.Max != 1 {
		return fmt.Sprintf("the limit is %d", l.Max)
	}
	return ""
}
