"""Ways to run `git push`: each one really pushes, and none is run where a rule forbids that.

Those of `REAL` are carried out, with a remote repository in a folder; programs for the others may be missing.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from execclient.govern.approval_policy import NEVER, ON_REQUEST, ApprovalPolicy
from execclient.govern.policy import Policy, PrefixRule, RuleSet, decide
from execclient.govern.sandbox import WorkspaceWrite

NO_PUSH = RuleSet((PrefixRule((("git",), ("push",)), "forbidden"),))
NO_PUSH_AND_ASK_FOR_RM = RuleSet((*NO_PUSH.prefix_rules, PrefixRule((("rm",),), "prompt")))

REAL = [
    "git push",
    "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.x GIT_CONFIG_VALUE_0=push git x",
    "GIT_CONFIG_PARAMETERS=\"'alias.x'='push'\" git x",
    "printf '[alias]\\nx = push\\n' > f; GIT_CONFIG_GLOBAL=f git x",
    "printf '[alias]\\nx = push\\n' > f; GIT_CONFIG_SYSTEM=f git x",
    "printf '[alias]\\nx = push\\n' > f; env GIT_CONFIG_GLOBAL=f git x",
    "printf '[alias]\\nx = push\\n' > f; export GIT_CONFIG_GLOBAL=f; git x",
    "printf '[alias]\\nx = push\\n' > .gitconfig; HOME=. git x",
    "A=push git --config-env=alias.x=A x",
    "A=push git --config-env alias.x=A x",
    "printf '[alias]\\nx = push\\n' > f; git -c include.path=$PWD/f x",
    "git -c remote.o.url=. -c remote.o.uploadpack='git push; #' fetch o",
    "git -c protocol.ext.allow=always fetch 'ext::sh -c git% push'",
    "GIT_ALLOW_PROTOCOL=ext:file git fetch 'ext::sh -c git% push'",
    "git config --global a.b $PWD; git for-each-repo --config=a.b push",
    "git config alias.x push; git x",
    "git config --add alias.x '!git push'; git x",
    "git -c alias.x='\"push\" -q' x",
    "git -c alias.x=\"'pu'sh\" x",
    "git -c alias.x='p\\ush' x",
    "git -c alias.x='!git' x push",
    "git -c alias.x='-c a.b=c push' x",
    "git fetch --upload-pack='git push; #' .",
    "git fetch --upload-pa='git push; #' .",
    "git ls-remote --upload-pack= --exec='git push; #' .",
    "git archive --remote=. --exec='git push; #' HEAD",
    "git clone -qu 'git push; #' . d",
    "git -c core.sshCommand='git push; #' fetch ssh://h/x",
    "GIT_SSH_COMMAND='git push; #' git fetch ssh://h/x",
    "git -c core.fsmonitor='git push; #' status",
    "git config core.fsmonitor 'git push; #'; git status",
    "git rebase -q --root --exec 'git push origin HEAD:refs/heads/main'",
    "git rebase --root --exe 'git push origin HEAD:refs/heads/main'",
    "GIT_SEQUENCE_EDITOR='sed -i 1iexec\\ git\\ push\\ origin\\ main' git rebase -q -i --root",
    "git -c sequence.editor='sed -i 1iexec\\ git\\ push\\ origin\\ main' rebase -q -i --root",
    "EDITOR='sed -i 1iexec\\ git\\ push\\ origin\\ main' git rebase -q -i --root",
    '"$(git --exec-path)"/git-push',
    "PATH=$(git --exec-path):$PATH git-push",
    "env 'BASH_FUNC_x%%=() { git push; }' bash -c x",
    "echo git push > f; BASH_ENV=f bash -c :",
    "echo git push > f; env BASH_ENV=f bash -c :",
    "echo git push > f; printf -v BASH_ENV f; export BASH_ENV; bash -c :",
    "shopt -s expand_aliases; BASH_ALIASES[x]='git push'\nx",
    "echo git push > f; chmod +x f; BASH_CMDS[x]=./f; x",
    "exec <<< 'git push'; bash",
    "exec << E; bash\ngit push\nE",
    "declare -a 'a=($(git push))'",
    "builtin declare -a 'a=($(git push))'",
    "PS4='$(git push)'; set -x; :",
    "choom -n 0 -- git push",
    "setarch x86_64 git push",
    "linux64 git push",
    "tar -I 'git push; #' -cf a .gitignore",
    "tar cIf 'git push; #' a .gitignore",
    "tar -cf a .gitignore; tar --to-comm='git push' -xf a",
    "tar --checkpoint=1 --checkpoint-action=exec='git push' -cf a .git",
    "sed '1e git push' .gitignore",
    "sed 'e git push' .gitignore",
    "sed '1egit push' .gitignore",
    "sed -n -e '/x/{p;e git push' -e '}' .gitignore",
    "sed -ne '1!d;1,2{s/.*/git push/pe;}' .gitignore",
    "sed 's/.*/git push/e' .gitignore",
    "sed '$s,.*,git push,ge' .gitignore",
    "awk 'BEGIN { system(\"git push\") }'",
    "awk 'BEGIN { \"git push\" | getline }'",
    "awk 'BEGIN { print | \"git push\" }'",
    "echo '!git push' | ed -s .gitignore",
    "vim -es -c '!git push' -c q",
    "ssh -o ProxyCommand='git push' h",
    "flock .gitignore git push",
    "script -qc 'git push' /dev/null",
    "env -S 'git push'",
    "env -S'git push'",
    "find .gitignore -exec git push ';'",
    "echo push | xargs git",
    "echo push | xargs -I{} git {}",
    "perl -e 'system \"git push\"'",
    "python3 -c 'import os; os.system(\"git push\")'",
    "! { git push; }",
    "time { git push; }",
    "time -p { git push; }",
    "! if true; then git push; fi",
    "time for i in 1; do git push; done",
    "time -p ! { git push; }",
    "! time { git push; }",
    "time while git push; do break; done",
    "! case x in x) git push;; esac",
    "time ( git push )",
    "x=$ git push",
    "X=1 y=$ git push",
    'y=$ "git" push',
    "sh -c - 'git push'",
    "2>&1 x='$(git push)'; echo ${x@P}",
    "echo `cat <<\\E\n`x`git push`\nE`",
    "true | x=(a b) > f git push",
    "! ! exec <<< 'git push'; bash",
    "time x='$(git push)'; echo ${x@P}",
    "x='$(git push)'?; echo ${x@P}",
    "x=$(cat <<'E'\n$(git push)\nE\n); echo ${x@P}",
    "echo \"${z:-'$(git push)'}\"",
    "echo `echo \\`git push\\``",
    "echo $(( $(a=(x `git pu\\\\\nsh`)) ))",
    "cat <<E\n$((cat <<'X'\n$(git push)\nX\n))\nE",
    "cat <<E\n $(git push)\nE",
    "cat <<E\n\t$(git push)\nE",
    "cat <<E\na `git push` b\nE",
    "cat <<E\n\t`git push`\nE",
    "cat <<-E\n\t$(git push)\n\tE",
    "cat <<E\n ${x:-$(git push)}\nE",
    "cat <<E\n $((`git push; echo 1`))\nE",
]

TOLD = [
    "git submodule foreach git push",
    "git submodule --quiet foreach 'git push'",
    "git subtree push --prefix=x origin main",
    "ssh h <<E\ngit push\nE",
    "echo git push | ssh h",
    "echo git push | parallel",
    "make --eval='x:;git push' x",
    "git -c core.pager='git push' --paginate log",
    "i386 git push",
    "uname26 git push",
    "ssh h git push",
    "ssh -i k user@h 'git push'",
    "docker exec -it c git push",
    "docker run --rm image sh -c 'git push'",
    "podman exec c git push",
    "kubectl exec p -- git push",
    "kubectl -n x exec -it p -c y -- sh -c 'git push'",
    "npx git push",
    "npx -c 'git push'",
    "npm exec -- git push",
    "npm exec -c 'git push'",
    "npm x git push",
    "tini -- git push",
    "tini -s git push",
    "dumb-init git push",
    "chpst -u x git push",
    "chpst -e ./env git push",
    "run0 git push",
    "run0 --user=x git push",
    "gdb --args git push",
    "gdb -batch -ex '!git push'",
    "gdb -ex 'shell git push'",
    "some-wrapper git push",
    "some-wrapper --option x -- git push",
    "some-wrapper -- sh -c 'git push'",
    "some-wrapper --run='git push'",
    "some-wrapper g''it push",
    "some-wrapper git-push",
    "some-wrapper /usr/lib/git-core/git-push",
    "parallel ::: 'git push'",
    "parallel git ::: push",
    "watch git push",
    "vim '+!git push'",
    "man -P 'git push' x",
    "rsync -e 'git push' a b:c",
    "ENV=f sh -i",
    "PROMPT_COMMAND='git push' bash -i",
    "git --shallow-file f push",
    "git --git-dir=f fetch",
    "GIT_DIR=f git fetch",
    "GIT_EXEC_PATH=f git fetch",
    "git --exec-path=f fetch",
    "git -c core.hooksPath=f commit",
    "git -c init.templateDir=f init",
    "git send-email --smtp-server='git push' x",
    "git clone -c alias.x=push . d",
    "git x",
    "bash git-push",
    "bash - git-push",
    ". git-push",
    "> f BASH_ENV=f bash -c :",
    "HOME=f git fetch",
    "export XDG_CONFIG_HOME=f; git fetch",
    "less '+!git push' f",
    "declare -n r=BASH_ENV; r=f; bash -c :",
    "for BASH_ENV in f; do bash -c :; done",
    ": ${BASH_ENV:=f}; export BASH_ENV; bash -c :",
    "while read -r PROMPT_COMMAND; do :; done",
    "exec 0< f; bash",
    "read BASH_ENV <<< f",
    "TAR_OPTIONS=--checkpoint-action=exec=git tar -cf a b",
]

EVERYDAY = [
    'DIFF=$(git diff); echo "$DIFF"',
    "export EDITOR=vim PAGER=less",
    'HOME=/tmp/x npm ci && [ -n "$PS1" ] && echo "$ENV"',
    "sed -n '/start/,/end/p; $!d' f",
    "sed -i.bak -e '1i header' -e 's#/usr#/opt#g; s/e/E/' src/e.txt",
    "sed -E 's/([a-z]+) (e)/\\2 \\1/' f | sed '$d' | sed '1~2d' | sed = f",
    "cargo build --release",
    "cargo test --all -- --nocapture 2>&1 | tail -40",
    "RUST_BACKTRACE=1 cargo test foo",
    "npm ci && npm run build",
    "npm rm left-pad",
    "NODE_ENV=production npm run build",
    "npx prettier --check .",
    "python -m pytest -q tests/unit -k 'not slow'",
    "pytest -x 2>&1 | grep -E 'FAIL|ERROR' | head",
    "python3 - <<'PY'\nimport subprocess\nprint('hi')\nPY",
    "pip install -e '.[dev]' && ruff check . && mypy .",
    "go test ./... -run 'TestA|TestB' -count=1",
    'make -j"$(nproc)" CFLAGS="-O2 -g"',
    "timeout 60 make test 2>&1 | tee log.txt",
    "time cargo build",
    "time -p make",
    "git status --short",
    "git log --oneline -5",
    "git log --format='%h %s' --since='2 weeks ago' | head",
    "git diff HEAD~1 -- src",
    "git show HEAD:src/x.py | head -50",
    'git add -A && git commit -m "Fix: don\'t push (yet)"',
    "git commit -m \"$(cat <<'EOF'\nFix `rm` and $(x)\n\ngit push is not run\nEOF\n)\"",
    "git -c user.name=x -c user.email=y commit -qm z",
    "git -c core.quotepath=off ls-files",
    "git fetch origin && git rebase origin/main",
    "git stash; git checkout -b x; git stash pop",
    "git rm --cached x",
    "git clone https://x/y.git && git submodule update --init",
    "git config user.email a@b.c",
    "git config --get remote.origin.url",
    "GIT_PAGER=cat git log -3",
    "GIT_EDITOR=true git rebase --continue",
    "cd sub && git status",
    "cat > f.py <<'EOF'\nimport os\nprint(`x`, $(y), 'it''s')\nEOF",
    "cat <<EOF > conf\nname=$NAME\nhome=${HOME}\nEOF",
    "cat <<EOF\n  version: $(date +%s)\n  home: ${HOME:-none}\nEOF",
    "cat <<EOF\nplain text\nEOF",
    'for f in *.py; do echo "$f"; wc -l "$f"; done',
    'while read -r line; do echo "$line"; done < list.txt',
    "if [ -f x ]; then cat x; else echo no; fi",
    "if [[ $x =~ ^a(b|c)$ ]]; then echo y; fi",
    '[[ -n "$X" && "$Y" == a* ]] && echo ok',
    "for i in $(seq 1 3); do echo $i; done",
    'case "$1" in start|stop) echo "$1";; *) echo other;; esac',
    'X=$(date +%s); echo "took $((X - 1))"',
    'f() { local a=$1; echo "$a"; }; f x',
    'arr=(a b c); echo "${arr[@]}" "${#arr[@]}" "${x:-default value}"',
    'echo "a $(basename "$PWD") b `date`"',
    "find . -name '*.py' -exec grep -n foo {} +",
    "find . -type f -not -path './node_modules/*' | xargs grep -l foo",
    "sed -i 's/foo/bar/g' src/*.py",
    "sed -n '1,40p' f",
    "sed -e '/^#/d' -e 's|a/b|c|' -e 's/one/two/' f",
    'sed -i "s/VERSION/$V/" f',
    "awk '{print $1}' f | sort | uniq -c",
    "awk -F: '$3 > 5 || /a|b/ {print $1}' f",
    'grep -rn "git push" docs',
    'echo "run git push to publish; rm x"',
    'gh pr create --title "Stop git push" --body "it does git push; rm -rf"',
    'export PATH="$HOME/.cargo/bin:$PATH"; cargo --version',
    "source .venv/bin/activate && python -V",
    "set -euo pipefail; trap 'echo done' EXIT",
    "docker compose up -d",
    'docker run --rm -v "$PWD":/w image make',
    "docker rm x",
    "kubectl get pods -n x",
    "ssh host uptime",
    "curl -sS https://example.org/x.json | jq '.a[] | .b'",
    "mkdir -p a/b && cp -r src/. a/b/ && mv a/b c",
    "tar -xzf a.tgz -C out && tar czf b.tgz out",
    "ps aux | grep [p]ython | awk '{print $2}'",
    "diff <(sort a) <(sort b)",
    "printf '%s\\n' \"${files[@]}\" | sort -u",
    "exec > log 2>&1; make",
    "exec 3< f",
    "node -e 'console.log(1)'",
    "sudo apt-get install -y git",
    "(cd sub && make) || exit 1",
    "{ echo a; echo b; } > f",
    "! grep -q foo f",
    "# with `ticks` and $(subst)\nls # more `",
    "ls -la && pwd",
]


def kind(script: str, rules: RuleSet = NO_PUSH, approval: ApprovalPolicy = ON_REQUEST) -> str:
    return decide(
        ["/bin/bash", "-c", script],
        policy=Policy(rules),
        approval=approval,
        sandbox=WorkspaceWrite(),
        cwd="/w",
        turn_cwd="/w",
        user_shell="/bin/bash",
    ).kind


@pytest.mark.parametrize("script", [*REAL, *TOLD], ids=ascii)
def test_no_way_to_push_is_run_where_it_is_forbidden(script: str) -> None:
    assert kind(script) in ("forbidden", "ask")
    assert kind(script, approval=NEVER) == "forbidden"


@pytest.mark.parametrize("script", EVERYDAY, ids=ascii)
def test_an_everyday_command_is_not_asked_about_for_rules_on_others(script: str) -> None:
    assert kind(script, NO_PUSH_AND_ASK_FOR_RM) == "skip"
    assert kind(script, NO_PUSH_AND_ASK_FOR_RM, NEVER) == "skip"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a remote one beside it, and one commit to push."""
    folder = tmp_path_factory.mktemp("template")
    subprocess.run(
        """git init -q --template= --bare remote && git init -q --template= -b main work &&
        cd work && echo x > .gitignore &&
        git config user.name x && git config user.email x && git config push.default current &&
        git remote add origin ../remote && git config remote.pushDefault origin &&
        git add . && git commit -qm x""",
        shell=True,
        check=True,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"},
    )
    return folder


@pytest.mark.parametrize("script", REAL, ids=ascii)
def test_each_way_really_pushes(script: str, template: Path, tmp_path: Path) -> None:
    missing = [each for each in PROGRAMS if script.startswith(each) and not shutil.which(each)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    folder = tmp_path / "copy"
    shutil.copytree(template, folder, symlinks=True)

    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=folder / "work",
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TERM": "dumb"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )

    assert (folder / "remote/refs/heads/main").exists(), ended.stderr.decode()


PROGRAMS = ("choom", "setarch", "linux64", "vim", "ssh", "script", "perl", "flock")
