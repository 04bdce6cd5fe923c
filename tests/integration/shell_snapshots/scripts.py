"""Profiles, and scripts that look at everything that a profile can leave in a shell."""

from __future__ import annotations

RICH_BASH = r"""
export EXPORTED=exported EMPTY= QUOTED=$'it\'s "q" $HOME `id` \\' LINES_="a
b" UMLAUT=grüße BYTES=$'\377\001\033[0m' SPACED='  two  spaces  '
unexported=plain
export UNSET_HERE; unset -v DROPPED
declare -x DECLARED; declare -i NUMBER=7; declare -l LOWER=ABC
declare -a ARRAY=(one "two  words" $'three\nlines' '')
declare -A TABLE=([key]=value ["other key"]='$x' [ü]=ä); declare -n REFERENCE=EXPORTED
readonly FIXED=fixed; readonly -a FIXED_ARRAY=(1 2)
sparse[3]=three; sparse[7]=seven
PATH=$HOME/bin:$PATH; CDPATH=/usr; IFS=$' \t\n'
PS1='\u@\h:\w\$ '; PROMPT_COMMAND='history -a'
plain() { echo "plain $# $1"; return 3; }
quoting() { local a='x  y' b=$'\n'; printf '<%s>' "$a" "$b" "${1:-none}" "$(echo sub)"; echo; }
heredoc() { cat <<END
here $1 \$not
END
cat <<'END'
raw $1
END
}
shopt -s extglob
globbing() { case $1 in +([0-9])) echo number;; @(a|b)*) echo letter;; *) echo other;; esac; }
exported() { echo "exported $1"; }; export -f exported
recursive() { (( $1 > 0 )) && { echo "$1"; recursive $(( $1 - 1 )); }; }
cd() { builtin cd "$@" && echo "in $PWD"; }
with-dash() { echo dashed; }
ünïcode() { echo "ü $1"; }
arith() {
  for ((i=0;i<3;i++)); do echo -n "$i"; done
  [[ $1 =~ ^a(.)c$ ]] && echo "${BASH_REMATCH[1]}"
  select x in a; do break; done </dev/null
}
redirects() { echo out; echo err >&2; } 2>&1
in_subshell() ( cd /; pwd )
shopt -s expand_aliases nullglob
alias ll='ls -d' say='echo said ' greet=hello two='echo one
echo two' quote="echo it\'s"
alias -- -x='echo minus'
set -o pipefail; set -o noclobber
shopt -u sourcepath
umask 027
ulimit -Sn 333; ulimit -Sc 0
hash -p /bin/true hashed_true
complete -W 'a b' plain
COMP_WORDBREAKS=' :'
builtin cd /usr/share; builtin cd /usr
(exit 5)
"""

PLAIN_BASH = """
export PLAIN=plain PATH="$HOME/bin:$PATH"
[ -f /nowhere ] && . /nowhere
"""

DEBIAN_BASH = """
# ~/.profile: executed by the command interpreter for login shells.
if [ -n "$BASH_VERSION" ]; then
    if [ -f "$HOME/.bashrc" ]; then
\t. "$HOME/.bashrc"
    fi
fi
if [ -d "$HOME/bin" ] ; then
    PATH="$HOME/bin:$PATH"
fi
"""

STRICT_BASH = """
set -euo pipefail
export STRICT=1
fails() { false; echo not reached; }
true | (exit 0) | true
"""

SCRIPTS = {
    "nothing": "",
    "exit code": "exit 7",
    "last status": "echo $? ${PIPESTATUS[@]}",
    "last argument": "echo $_; : a b; echo $_",
    "failing command": "false",
    "command not found": "no_such_command_here",
    "killed by a signal": "kill -TERM $$",
    "syntax error": "echo one; if then",
    "syntax error later": "echo one\necho two\n)",
    "number of the line": "echo one\n\nno_such_command_here\necho $LINENO",
    "arguments": 'echo "$#" "$0" "$@"',
    "flags": "echo $-; echo $SHELLOPTS; echo $BASHOPTS",
    "options": "set -o; shopt",
    "login shell": "shopt login_shell; shopt -q restricted_shell; echo $?",
    "environment": "env -u _ | sort",
    "environment of a child": "bash -c 'env | sort | grep -v ^_='",
    "child without the snapshot": "bash -c 'echo ${BASH_ENV-unset}; type plain'; sh -c 'echo ${BASH_ENV-x}'",
    "variables": "declare -p | grep -vE ' (_|BASHPID|BASH_ARG[CV]|EPOCH.*|PPID|S?RANDOM|SECONDS)='",
    "unexported": 'echo "$unexported"; sh -c \'echo "<$unexported>"\'',
    "attributes": "NUMBER=2+3; LOWER=XYZ; echo $NUMBER $LOWER; REFERENCE=changed; echo $EXPORTED",
    "arrays": 'printf "<%s>" "${ARRAY[@]}" "${!TABLE[@]}" "${TABLE[other key]}" "${!sparse[@]}"',
    "readonly": "FIXED=other; echo not reached",
    "readonly array": "FIXED_ARRAY[0]=9; echo $?",
    "bytes": 'printf %s "$BYTES$UMLAUT$LINES_$QUOTED" | od -c',
    "unset variable": 'echo "<${NOWHERE-unset}>${DECLARED-unset}"; set -u; echo $NOWHERE; echo not reached',
    "functions": "declare -F; declare -f",
    "function": "plain a b; echo $?; with-dash; ünïcode x; recursive 3",
    "quoting in a function": "quoting; quoting 'a  b'",
    "here-documents in a function": "heredoc 'x  y'",
    "patterns in a function": "globbing 12; globbing ab; globbing -",
    "arithmetic in a function": "arith abc",
    "redirections of a function": "redirects | cat; in_subshell; pwd",
    "exported function": "exported here; bash -c 'exported there'; env | grep -c BASH_FUNC",
    "overridden builtin": "cd /; cd - ; builtin cd /tmp; pwd",
    "new function": "plain() { echo new; }; plain; unset -f plain; type plain",
    "aliases": "alias",
    "alias in the same line": "say greet; two; quote; -x y",
    "alias on another line": "alias new='echo new'\nnew\nunalias say\nsay x",
    "no alias after quotes": "\\say x; 'say' y",
    "alias in eval": "eval 'say eval'; (say sub); x=$(say command); echo $x",
    "traps": "trap -p; trap 'echo bye' EXIT; trap 'echo term' TERM; kill -TERM $$; echo on",
    "trap of an error": "trap 'echo error at $LINENO' ERR; false; true | false",
    "exit in a trap": "trap 'exit 5' EXIT; exit 3",
    "path": "echo $PATH; command -v ls; type -a true; hash",
    "program in the path of the profile": "mine; command -v mine",
    "hashed": "type hashed_true; hash -t hashed_true; hashed_true && echo ran",
    "folder": "pwd; echo $PWD $OLDPWD; ls -d /proc/self/cwd; readlink /proc/self/cwd; dirs; builtin cd -",
    "cdpath": "builtin cd share && pwd",
    "umask": "umask; d=$(mktemp -d); : >$d/f; stat -c %a $d/f; rm -r $d",
    "limits": "ulimit -Sa | grep -v -- -R; ulimit -Ha | grep -v -- -R",
    "errexit": "set -e; false; echo not reached",
    "errexit in a function": "set -e; plain; echo not reached",
    "pipefail": "false | true; echo $? ${PIPESTATUS[@]}",
    "noclobber": "f=$HOME/new; echo x >$f; echo y >$f; echo $?; echo z >|$f; cat $f; rm $f",
    "nullglob": "echo /nowhere/*; for f in /nowhere/*; do echo $f; done",
    "xtrace": "set -x; plain 1; x=$UMLAUT",
    "verbose": "set -v\nplain 1\necho two",
    "standard input": "cat; read x; echo $?",
    "descriptors": "for f in /proc/$$/fd/*; do [ -e $f ] && readlink $f | sed 's/:.*//'; done",
    "here-document": 'cat <<E\nhere $EXPORTED $(plain z)\nE\ncat <<<"$UMLAUT"',
    "here-document without an end": "cat <<E\nhere",
    "background": "sleep 0.01 & wait $!; echo $?; jobs; (exit 4) & wait %1; echo $?; jobs -p",
    "coprocess": "coproc cat; echo hi >&${COPROC[1]}; read -u ${COPROC[0]} x; echo $x",
    "process substitution": "cat <(plain 1) <(echo 2)",
    "subshell": "(plain; echo $?; X=1); echo $? ${X-unset} $BASH_SUBSHELL",
    "exec": "exec -a other bash -c 'echo $0 ${EXPORTED}'",
    "shell level": "echo $SHLVL; bash -c 'echo $SHLVL'",
    "source": "f=$HOME/more; echo 'plain sourced; return 4' >|$f; . $f; echo $?; rm $f; type -t hashed_true",
    "return outside": "return 3; echo $?",
    "logout": "echo before; logout",
    "exit runs the logout file": "exit 0",
    "completions": "complete -p; echo $COMP_WORDBREAKS; compgen -W 'x y'; compgen -A function | head -3",
    "history": "set -o | grep history; history | wc -l; echo $HISTFILE",
    "prompt": 'echo "$PS1"; echo $PROMPT_COMMAND',
    "execution string": 'echo "$BASH_EXECUTION_STRING"; echo ${BASH_ENV-unset}',
    "call stack": "echo ${FUNCNAME[@]-none} ${BASH_SOURCE[@]-none}; caller; f() { caller 0; }; f",
    "splitting": "x='a  b'; set -- $x; echo $#; echo $SPACED",
    "getopts": "set -- -a x; while getopts a: o; do echo $o $OPTARG; done; echo $OPTIND",
    "names of the snapshot": "(compgen -v; compgen -A function; env) | grep -i execserver",
    "large output": "head -c 300000 /dev/zero | od -An -v -tx1 | md5sum",
    "long script": "echo start" + "; :" * 5000 + "; echo end",
    "non-ASCII script": "echo 'grüße 日本語'; ünïcode é",
    "posix mode": "set -o posix; plain; export -p | head -2; with-dash",
    "time": "TIMEFORMAT=x; time :",
}

RICH_ZSH = r"""
export EXPORTED=exported EMPTY= QUOTED=$'it\'s "q" $HOME `id` \\' LINES_="a
b" UMLAUT=grüße SPACED='  two  spaces  '
unexported=plain
typeset -i NUMBER=7; typeset -l LOWER=ABC; typeset -a ARRAY=(one "two  words" $'three\nlines' '')
typeset -A TABLE=(key value "other key" '$x'); typeset -r FIXED=fixed; typeset -F FLOAT=1.5
typeset -U path; path=($HOME/bin $path); cdpath=(/usr); fpath=($HOME/functions $fpath)
PS1='%n@%m '; WORDCHARS=''
plain() { echo "plain $# $1"; return 3; }
quoting() { local a='x  y' b=$'\n'; printf '<%s>' "$a" "$b" "${1:-none}" "$(echo sub)"; echo; }
heredoc() { cat <<END
here $1 \$not
END
cat <<'END'
raw $1
END
}
cd() { builtin cd "$@" && echo "in $PWD"; }
with-dash() { echo dashed; }
autoload -Uz mine_too colors
hash hashed_true=/bin/true; hash -d share=/usr/share
zstyle ':completion:*' menu yes
builtin cd /usr
[[ -f /nowhere ]] && . /nowhere
"""

ZSH_SCRIPTS = {
    **{
        name: script
        for name, script in SCRIPTS.items()
        if name
        in {
            "nothing", "exit code", "last status", "last argument", "failing command", "command not found",
            "killed by a signal", "syntax error", "syntax error later", "number of the line", "arguments",
            "environment", "unexported", "function", "quoting in a function", "here-documents in a function",
            "overridden builtin", "new function", "trap of an error", "exit in a trap", "cdpath",
            "program in the path of the profile", "umask", "errexit", "errexit in a function",
            "standard input", "descriptors", "here-document", "here-document without an end",
            "process substitution", "exec", "shell level", "source", "return outside", "logout",
            "exit runs the logout file", "splitting", "getopts", "large output", "non-ASCII script", "prompt",
        }
    },
    "background": "sleep 0.01 & wait $!; echo $?; jobs",
    # A job that has ended is not found by its number, other than in bash.
    "job": "(sleep 1; exit 4) & wait %1; echo $?; jobs -p",
    "flags": "echo $-; setopt; unsetopt",
    "variables": "typeset -p | grep -vE ' (_|[$!]|PPID|RANDOM|SECONDS|TTYIDLE|EPOCH.*)='",
    "functions": "functions; mine_too; type colors",
    "aliases": "alias -L; alias new='echo new'; eval 'new eval'",
    "alias on another line": "alias new='echo new'\nnew\necho on",
    "xtrace": "set -x; x=$UMLAUT; : $path",
    "tied": "echo $path[1] $PATH; path+=(/x /x); echo $PATH",
    "named folder": "echo ~share; hash -d",
    "hashed": "type hashed_true; hashed_true && echo ran",
    "modules": "zmodload; zmodload zsh/datetime && echo ${+EPOCHSECONDS}",
    "styles": "zstyle -L; autoload is-at-least; is-at-least 5 && echo new",
    "limits": "ulimit -a | grep -v 'rt cpu'; ulimit -Ha | grep -v 'rt cpu'",
    "folder": "pwd; echo $PWD $OLDPWD; readlink /proc/self/cwd; dirs; builtin cd -",
    "execution string": 'echo "$ZSH_EXECUTION_STRING"',
    "call stack": "echo $0 $ZSH_ARGZERO ${(%):-%N:%x:%i} $ZSH_EVAL_CONTEXT\nf() { echo $functrace }; f",
    "begins with an operator": "; echo one",
    "begins with a comment": "# no comment\necho two",
    "begins with a line": "\n\nno_such_command_here",
    "begins with an assignment": "A=1 env | grep ^A=",
    "names of the snapshot": "(typeset; functions; env) | grep -i execserver",
    "only a function": "x() { echo x }",
    "job control": "setopt monitor; sleep 0 & wait; echo $?",
}  # fmt: skip
