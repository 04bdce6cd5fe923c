"""Generated scripts, read by the policy and run by bash: a rule that forbids what bash ran must have seen it.

    make fuzz                                               100,000 scripts
    EXECSERVER_FUZZ_SCRIPTS=1000000 EXECSERVER_FUZZ_SEED=7 python -m pytest THIS_FILE

Bash finds a few harmless programs only, and the stub `canary`, which notes that it was run. A failure gives
the seed, the number and the text of each script that got past the rule; `EXECSERVER_FUZZ_FIRST_SCRIPT` begins
at a number.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from execclient.govern.approval_policy import ON_REQUEST
from execclient.govern.policy import Policy, PrefixRule, RuleSet, decide
from execclient.govern.sandbox import WorkspaceWrite

COUNT = int(os.environ.get("EXECSERVER_FUZZ_SCRIPTS", "2000"))
SEED = int(os.environ.get("EXECSERVER_FUZZ_SEED", "1"))
FIRST = int(os.environ.get("EXECSERVER_FUZZ_FIRST_SCRIPT", "0"))
BATCH = 500
"""Scripts of one bash that runs the others."""

POLICY = Policy(RuleSet((PrefixRule((("canary",),), "forbidden"),)))

NAMES = ["canary"] * 9 + ["c''anary", '"canary"', "can\\ary", "$'canary'", "$'\\x63anary'", "ca\\\nnary"]
SIMPLE = [
    ":",
    "true",
    "echo a",
    "x=1",
    "cat",
    "y=$x",
    "echo 'a b' # c",
    "[ a = b ]",
    "echo \"a b\" 'c' d\\ e",
]

_PATTERNS = r"""
! C
time C
time -p C
command C
builtin eval 'C'
eval 'C'
eval C
env C
X=1 C
X=1 Y=$x C
bash -c 'C'
sh -c 'C'
bash -c "C"
bash <<< 'C'
bash <<E⏎C⏎E
bash <<'E'⏎C⏎E
exec <<< 'C'; bash
trap 'C' EXIT
coproc C; wait
coproc N { C; }; wait
C & wait
C | cat
echo 'C' | bash
: | xargs C
{ C; }
( C )
(C)
if C; then D; fi
if :; then C; else D; fi
for i in 1; do C; done
for ((i=0;i<1;i++)); do C; done
while C; do break; done
until ! C; do break; done
case x in x) C;; esac
case x in⏎(y|x) C⏎esac
f() { C; }; f
function f { C; }; f
f() ( C ); f
echo $(C)
echo `C`
echo "$(C)"
echo "`C`"
echo ${z:-$(C)}
echo ${z:-`C`}
echo "${z:-$(C)}"
echo ${z:=$(C)}
echo $(( $(C) + 1 ))
echo $[ $(C) ]
cat <(C)
echo a > >(C); wait
a[$(C)]=1
a=($(C))
a=(x `C`)
x=$ C
X=1 y=$ C
x=$(C)
x="$(C)" D
declare x=$(C)
declare -a 'a=($(C))'
[[ -n $(C) ]]
[[ a == $(C) ]]
(( $(C) ))
case $(C) in *) D;; esac
cat <<E⏎$(C)⏎E
cat <<E⏎ $(C)⏎E
cat <<E⏎⇥`C`⏎E
cat <<-E⏎⇥$(C)⏎⇥E
cat <<'E'⏎$(C)⏎E
cat <<\E⏎`C`⏎E
cat <<E D⏎${z:-$(C)}⏎E
cat <<A <<B⏎$(C)⏎A⏎`C`⏎B
cat <<E | bash⏎C⏎E
cat <<< $(C)
cat <<< "`C`"
> f C
C > f
< f C
2>&1 C
C 2>&1 | cat
D; C
D && C
D || C
D⏎C
D | C
D # C⏎C
D \⏎; C
set -- C; "$@"
alias q=C⏎q
shopt -s expand_aliases; alias q='C'⏎q
BASH_ENV=f bash -c D
x='C'; eval "$x"
x='C'; eval $x
x='a[$(C)]'; echo $((x))
x='$(C)'; echo ${x@P}
PS4='$(C)'; set -x; D
let 'a[$(C)]=1'
printf -v 'a[$(C)]' x
read 'a[$(C)]' <<< 1
mapfile -C 'C' -c 1 <<< x
test -v 'a[$(C)]'
select i in a; do C; done <<< 1
time { C; }
! { C; }
time -p { C; }
! if C; then D; fi
time for i in 1; do C; done
! ! C
time time C
time ! { C; }
time -- C
if ! { C; }; then D; fi
{ C; } 2>&1 | { D; }
echo a{$(C),b}
echo ${x/a/$(C)}
echo ${x:$(C)}
echo ${#x} $(C)
echo $'a' $(C)
echo $"$(C)"
echo "a'$(C)'"
echo 'a'"'"$(C)
echo a#$(C)
echo \$(C)
echo \\$(C)
echo "\$(C)"
echo "\\$(C)"
echo '\'$(C)
echo `echo \`C\``
echo $(echo "$(C)" ')' )
echo "${z:-"$(C)"}"
echo "${z:-'$(C)'}"
echo ${z:-'$(C)'}
x=a\ b C
x=${z:-a b} C
x=(a b) C
echo !(C)
echo @($(C))
"""
AROUND = [line.replace("⏎", "\n").replace("⇥", "\t") for line in _PATTERNS.split("\n") if line]
"""With `C` for a script that runs the stub, and `D` for any other."""

NOISE = [
    *" \t\n\\$`\"'(){}<>|&;#!=[]~*?",
    "$(",
    "<<E\n",
    "\nE\n",
    "${",
    "}",
    "((",
    "))",
    "$'",
    "<(",
    "canary",
    "\\\n",
]


def script(chance: random.Random, depth: int = 0) -> str:
    """A script that probably runs the stub."""
    if depth > 2 or chance.random() < 0.15:
        return chance.choice(NAMES)
    inside = script(chance, depth + 1 + chance.randrange(2))
    pattern = chance.choice(AROUND).replace("D", chance.choice(SIMPLE))
    return pattern.replace("C", inside)


def mutated(text: str, chance: random.Random) -> str:
    """The same with some characters added, doubled or left out."""
    for _ in range(chance.choice((0, 0, 1, 1, 2, 3))):
        place = chance.randrange(len(text) + 1)
        match chance.randrange(3):
            case 0:
                text = text[:place] + chance.choice(NOISE) + text[place:]
            case 1:
                text = text[:place] + text[place + 1 :]
            case _:
                text = text[:place] + text[place : place + 3] + text[place:]
    return text


def skips(text: str) -> bool:
    """Whether the policy would run it."""
    argv = ["/bin/bash", "-c", text]
    return decide(argv, policy=POLICY, approval=ON_REQUEST, sandbox=WorkspaceWrite()).kind == "skip"


class Runner:
    """Runs scripts where there is nothing but bash, a few harmless programs, and the stub."""

    DRIVER = """
        cd "$1/run" || exit 1
        ulimit -t 2 -f 1000
        for script in "$1"/scripts/*; do
            "$2" -s KILL 1 bash -c "$(<"$script")" </dev/null >/dev/null 2>&1
            if [ -e ../ran ]; then echo "${script##*/}" >> ../which; rm -r ../ran; fi
        done
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bin = folder / "bin"
        self._bin.mkdir()
        for name in ("bash", "sh", "env", "cat", "xargs", "rm"):
            found = shutil.which(name)
            assert found is not None
            (self._bin / name).symlink_to(Path(found).resolve())
        stub = self._bin / "canary"
        stub.write_text(f"#!/bin/sh\n: > {folder}/ran\n")
        stub.chmod(0o755)
        self._timeout = shutil.which("timeout") or ""
        self._launcher = self._sandbox()

    def _sandbox(self) -> list[str]:
        bubblewrap = shutil.which("bwrap")
        if bubblewrap is None:
            return []
        launcher = [bubblewrap, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"]
        launcher += ["--proc", "/proc", "--bind", str(self._folder), str(self._folder)]
        works = subprocess.run([*launcher, "/bin/true"], capture_output=True, check=False).returncode == 0
        return launcher if works else []

    def ran(self, scripts: dict[int, str]) -> set[int]:
        """Those of some scripts, by their numbers, that ran the stub."""
        for name in ("scripts", "run"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
            (self._folder / name).mkdir()
        for name in ("which", "ran"):
            (self._folder / name).unlink(missing_ok=True)
        for number, text in scripts.items():
            (self._folder / "scripts" / str(number)).write_text(text)
        subprocess.run(
            [
                *self._launcher,
                "/bin/bash",
                "-c",
                self.DRIVER,
                "driver",
                str(self._folder),
                shutil.which("timeout") or "",
            ],
            env={"PATH": str(self._bin), "FUNCNEST": "50"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=600,
            check=True,
        )
        which = self._folder / "which"
        return set(map(int, which.read_text().split())) if which.exists() else set()


@pytest.mark.timeout(120 + COUNT // 50)
def test_what_bash_runs_the_policy_has_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = Runner(tmp_path)
    ran = skipped = 0
    missed: list[str] = []
    for first in range(FIRST, FIRST + COUNT, BATCH):
        numbers = range(first, min(first + BATCH, FIRST + COUNT))
        chances = {number: random.Random(f"{SEED} {number}") for number in numbers}
        scripts = {number: mutated(script(chance), chance) for number, chance in chances.items()}
        running = runner.ran(scripts)
        skipping = {number for number, text in scripts.items() if skips(text)}
        for number in sorted(running & skipping):
            # What an earlier script left in the background may have run the stub.
            if runner.ran({number: scripts[number]}):
                missed.append(f"seed {SEED}, script {number}: {scripts[number]!r}")
        ran, skipped = ran + len(running), skipped + len(skipping)

    with capsys.disabled():
        print(
            f"\npolicy against bash, seed {SEED}: {COUNT} scripts, {ran} ran the stub, {skipped} may run",
            end=" ",
        )
    if missed:
        pytest.fail("run, though forbidden:\n" + "\n".join(missed))
    assert ran > COUNT / 4
    assert skipped > COUNT / 100
