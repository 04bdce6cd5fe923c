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
    ! sudo doas pkexec su runuser sg env command builtin exec coproc noglob nocorrect nohup nice
    time ionice setsid stdbuf xargs parallel watch entr hyperfine strace ltrace fakeroot unbuffer
    rlwrap chronic caffeinate eatmydata numactl prlimit setpriv unshare nsenter bwrap firejail
    systemd-run systemd-inhibit dbus-run-session xvfb-run torsocks tsocks proxychains proxychains4
    busybox toybox genv gnice gnohup gtime gxargs gstdbuf - valgrind catchsegv ssh-agent linux32
    linux64 i386 x86_64 daemonize run-one cpulimit cgexec faketime start-stop-daemon perf tmux
    screen choom chpst tini run0 setarch npx
"""
_BEHIND_ONE = "timeout gtimeout chroot taskset chrt flock gosu su-exec repeat runcon script ssh"

OPERANDS_BEFORE = {**dict.fromkeys(_AT_ONCE.split(), 0), **dict.fromkeys(_BEHIND_ONE.split(), 1)}
"""Programs that run the command behind their options, with the number of operands that come before it."""

_ANYWHERE = """
    bwrap coproc systemd-run parallel nsenter firejail valgrind daemonize cpulimit cgexec faketime
    start-stop-daemon perf tmux screen choom chpst tini run0 setarch npx
"""
ANY_SUFFIX = frozenset(_ANYWHERE.split())
"""Of these: ones whose options take several values, or whose command may begin anywhere."""

JOINED = frozenset(
    {"watch", "parallel", "entr", "hyperfine", "sg", "su", "runuser", "tmux", "screen", "ssh", "npx"}
)
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
_CONTAINERS = "docker podman nerdctl docker-compose podman-compose"
_CLUSTERS = "kubectl oc microk8s k3s"
BEHIND_SUBCOMMAND: dict[str, frozenset[str]] = {
    **dict.fromkeys(_ENVIRONMENTS.split(), frozenset({"run"})),
    **dict.fromkeys(("bundle", "direnv", "mise"), frozenset({"exec", "x"})),
    **dict.fromkeys(_CONTAINERS.split(), frozenset({"exec", "run", "create"})),
    **dict.fromkeys(_CLUSTERS.split(), frozenset({"exec", "run", "debug"})),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), frozenset({"exec", "x", "dlx"})),
}
"""Programs that run the command behind one of their subcommands, and behind its options and operands."""

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
    "tar": (
        *("-I", "-F", "--use-compress-program", "--to-command"),
        *("--info-script", "--new-volume-script", "--rsh-command"),
    ),
    "rsync": ("-e", "--rsh"),
    "scp": ("-S",),
    **dict.fromkeys(("mapfile", "readarray", "complete"), ("-C",)),
    "compgen": ("-C", "-W"),
    "fc": ("-e",),
    "capsh": ("-c",),
    **dict.fromkeys(("npm", "npx", "pnpm"), ("-c", "--call")),
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

_OPERANDS = """
    : [ [[ test true false echo printf pwd cd pushd popd dirs ls dir tree stat file du df cat tac
    head tail more wc cut paste sort uniq comm join tr nl rev fold fmt column diff cmp grep
    egrep fgrep rg ag ack jq yq touch mkdir rmdir rm mv cp ln install chmod chown chgrp dd sync
    truncate mktemp readlink realpath basename dirname which whereis type command hash man info help
    history date cal sleep seq yes kill pkill killall pgrep ps top free uptime uname hostname id
    whoami who groups tee md5sum sha1sum sha256sum base64 xxd od strings gzip gunzip zcat bzip2 xz
    zstd unzip read unset shift return exit break continue wait jobs fg bg umask ulimit export local
    declare typeset readonly set shopt getopts alias unalias printenv apt apt-get apt-cache dpkg yum
    dnf rpm apk pacman brew pip pip3 npm pnpm yarn bun bundle gem cargo rustup go gh glab hub svn hg
    docker podman kubectl helm terraform systemctl journalctl service pytest ruff black mypy flake8
    isort eslint prettier tsc jest vitest gcc g++ cc clang rustc javac curl wget ping dig host
    nslookup expr let bc numfmt codespell sed awk gawk mawk nawk git crontab
"""
TAKES_OPERANDS = frozenset(_OPERANDS.split())
"""Programs that run none of their operands, other than as `unwrapping` tells: a command that stands behind
any other program may be run by it."""

_SHELL_VARIABLES = """
    BASH_ENV ENV BASH_ALIASES BASH_CMDS BASH_LOADABLES_PATH PROMPT_COMMAND PS0 PS1 PS2 PS4 SHELLOPTS
    BASHOPTS ZDOTDIR LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES TAR_OPTIONS RIPGREP_CONFIG_PATH
"""
SHELL_VARIABLES = frozenset(_SHELL_VARIABLES.split())
"""Variables by which a shell, or another program that is run, is made to run something else."""

_GIT_VARIABLES = """
    AUTHOR_NAME AUTHOR_EMAIL AUTHOR_DATE COMMITTER_NAME COMMITTER_EMAIL COMMITTER_DATE
    TERMINAL_PROMPT OPTIONAL_LOCKS TRACE TRACE_PACKET TRACE_PERFORMANCE TRACE_SETUP TRACE2
    TRACE_CURL CURL_VERBOSE MERGE_AUTOEDIT INDEX_FILE LITERAL_PATHSPECS ICASE_PATHSPECS PAGER EDITOR
    SEQUENCE_EDITOR LFS_SKIP_SMUDGE CEILING_DIRECTORIES HTTP_USER_AGENT SSL_NO_VERIFY
    CLONE_PROTECTION_ACTIVE ADVICE CONFIG_NOSYSTEM FLUSH DISCOVERY_ACROSS_FILESYSTEM
"""
GIT_VARIABLES = frozenset(f"GIT_{name}" for name in _GIT_VARIABLES.split())
"""Variables of git that run nothing, or what is read as a script. Any other one may run something."""
