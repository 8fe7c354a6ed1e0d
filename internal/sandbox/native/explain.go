package native

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox/confine"
)

// remedies end every explanation.
const remedies = "--sandbox landlock confines less and needs no namespaces; --sandbox none confines nothing"

// explain adds to an error of setting up what it usually means, and what to do.
func explain(err error) error {
	if why := meaning(err); why != "" {
		return fmt.Errorf("%w\n%s\n%s", err, why, remedies)
	}
	return err
}

func meaning(err error) string {
	var e *stageError
	if errors.Is(err, confine.ErrRootWithoutAdmin) {
		return "Run the worker as an ordinary user, or give the container SYS_ADMIN, an unmasked /proc (systempaths=unconfined) " +
			"and a seccomp profile that allows clone, unshare, mount, pivot_root, open_tree, move_mount and mount_setattr."
	}
	if !errors.As(err, &e) {
		return ""
	}
	refused := errors.Is(e, unix.EPERM) || errors.Is(e, unix.EACCES)
	switch {
	case e.Stage == "make the namespaces" && errors.Is(e, unix.ENOSPC), e.Stage == "make the namespaces" && off("/proc/sys/user/max_user_namespaces"):
		return "User namespaces are used up or switched off: raise the sysctl user.max_user_namespaces."
	case e.Stage == "make the namespaces" && refused && off("/proc/sys/kernel/unprivileged_userns_clone"):
		return "This kernel lets only root make user namespaces: set the sysctl kernel.unprivileged_userns_clone to 1, or run the worker as root."
	case e.Stage == "make the namespaces" && refused:
		return "User namespaces are refused here, as in a container with the default seccomp profile: allow clone and unshare in its profile " +
			"(docker: --security-opt seccomp=PROFILE), and unmask /proc (--security-opt systempaths=unconfined)."
	case errors.Is(e, unix.ENOSYS):
		return "The kernel is too old: open_tree, move_mount and mount_setattr need Linux 5.12."
	case strings.Contains(e.Text, "mount proc") && refused, e.Stage == "mount /proc" && refused:
		return "The kernel refuses a new /proc where the present one is masked, as in a container: start it with systempaths=unconfined " +
			"(docker: --security-opt systempaths=unconfined)."
	case e.Stage == "map the workspace's owner":
		return "root owns the workspace, and its file system cannot show it as another user's. Give the workspace to an ordinary user " +
			"(chown -R USER DIR), run the worker as its owner, or use a file system with mapped mounts (ext4, xfs, btrfs, tmpfs)."
	case (e.Stage == "make the view" || e.Stage == "bring up the loopback interface" || e.Stage == "name the host") && refused:
		return "The namespaces were made, but their owner may do nothing in them. On Ubuntu that is AppArmor's rule for user namespaces: " +
			"install a profile with `userns,` for " + program() + "; do not switch the rule off for everybody. In a container, its own profile may be the cause."
	}
	return ""
}

func program() string {
	p, err := os.Executable()
	if err != nil {
		return "this program"
	}
	return p
}

// off reports whether a sysctl exists and is 0.
func off(file string) bool {
	b, err := os.ReadFile(file)
	return err == nil && strings.TrimSpace(string(b)) == "0"
}

// explainGroups tells what to do where limits cannot be enforced.
func explainGroups(err error) error {
	return fmt.Errorf("limits on memory and processes cannot be enforced: %w\n"+
		"No control group may be made here. Run the worker as root, as a systemd service with Delegate=yes, or under "+
		"`systemd-run --user --scope -p Delegate=yes`; or accept limits that are only watched (--soft-limits).\n%s", err, remedies)
}
