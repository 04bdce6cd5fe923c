"""Programs that run other programs, and how each is told what to run.

Data for `unwrapping`. Interpreters of languages other than a shell's are not in it: what a program in Python,
Perl or AWK runs, or a makefile, is not told by the script.
"""

from __future__ import annotations

_SHELLS = "sh bash rbash zsh dash ash ksh mksh oksh yash posh fish csh tcsh"

SHELLS = frozenset(_SHELLS.split())
"""Whose scripts are read, each as if it were bash's."""

OTHER_SHELLS = frozenset({"pwsh", "powershell", "cmd", "nu", "xonsh", "elvish"})
"""Whose scripts nothing here can read."""

_AT_ONCE = """
    ! sudo doas pkexec su runuser sg env command builtin exec coproc noglob nocorrect nohup nice time ionice
    setsid stdbuf xargs parallel watch entr hyperfine strace ltrace fakeroot unbuffer rlwrap chronic
    caffeinate eatmydata numactl prlimit setpriv unshare nsenter bwrap firejail systemd-run systemd-inhibit
    dbus-run-session xvfb-run torsocks tsocks proxychains proxychains4 busybox toybox genv gnice gnohup gtime
    gxargs gstdbuf - valgrind catchsegv ssh-agent linux32 linux64 i386 x86_64 daemonize run-one cpulimit
    cgexec faketime start-stop-daemon perf tmux screen
"""
_BEHIND_ONE = "timeout gtimeout chroot taskset chrt flock setarch gosu su-exec repeat runcon script"

OPERANDS_BEFORE = {**dict.fromkeys(_AT_ONCE.split(), 0), **dict.fromkeys(_BEHIND_ONE.split(), 1)}
"""Programs that run the command behind their options, with the number of operands that come before it."""

_ANYWHERE = """
    bwrap coproc systemd-run parallel nsenter firejail valgrind daemonize cpulimit cgexec faketime
    start-stop-daemon perf tmux screen
"""
ANY_SUFFIX = frozenset(_ANYWHERE.split())
"""Of these: ones whose options take several values, or whose command may begin anywhere."""

JOINED = frozenset({"watch", "parallel", "entr", "hyperfine", "sg", "su", "runuser", "tmux", "screen"})
"""Of these: ones that hand their command to a shell."""

FLAGS = {
    "sudo": frozenset("AbEHknS"),
    "env": frozenset("i0v"),
    "xargs": frozenset("0oprtx"),
    "time": frozenset("pv"),
    "exec": frozenset("cl"),
}
"""Letters of options that have no value, of programs that agents use often: they leave no doubt."""

APPENDS = frozenset({"xargs", "gxargs", "parallel"})
"""Of these: ones that add arguments which they read."""

_ENVIRONMENTS = "uv poetry pipenv pdm rye hatch conda mamba micromamba devbox"
BEHIND_SUBCOMMAND = {
    **dict.fromkeys(_ENVIRONMENTS.split(), "run"),
    **dict.fromkeys(("bundle", "direnv", "mise"), "exec"),
}
"""Programs that run the command behind one of their subcommands, and behind its options."""

QUERIES = {"command": frozenset("vV")}
"""Options that make a program only tell about a command."""

SCRIPT_OPTIONS: dict[str, tuple[str, ...]] = {
    "su": ("-c", "--command", "--session-command"),
    "runuser": ("-c", "--command", "--session-command"),
    "script": ("-c", "--command"),
    "flock": ("-c", "--command"),
    "sg": ("-c",),
    "env": ("-S", "--split-string"),
    "genv": ("-S", "--split-string"),
    "rg": ("--pre", "--hostname-bin"),
    "ag": ("--pager",),
    "man": ("-P", "--pager"),
    "sort": ("--compress-program",),
    "split": ("--filter",),
    "tar": ("-I", "-F", "--use-compress-program", "--to-command", "--info-script", "--rsh-command"),
    "rsync": ("-e", "--rsh"),
    "scp": ("-S",),
    **dict.fromkeys(("mapfile", "readarray", "complete"), ("-C",)),
    "compgen": ("-C", "-W"),
    "fc": ("-e",),
    "capsh": ("-c",),
    "nix-shell": ("--run", "--command"),
    "fd": ("-x", "-X", "--exec", "--exec-batch"),
    "fdfind": ("-x", "-X", "--exec", "--exec-batch"),
}
"""Options whose value is a command line."""

SETTING_OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ssh", "scp", "sftp"), ("-o",)),
    "tar": ("--checkpoint-action",),
}
"""Options whose value is a setting `NAME=VALUE`, of which the value may be a command line."""

FOLLOWED_BY_COMMAND = {
    "find": frozenset({"-exec", "-execdir", "-ok", "-okdir"}),
    "gfind": frozenset({"-exec", "-execdir", "-ok", "-okdir"}),
    "fd": frozenset({"-x", "-X", "--exec", "--exec-batch"}),
    "fdfind": frozenset({"-x", "-X", "--exec", "--exec-batch"}),
}
"""Options that a whole command follows, up to `;` or `+`."""
