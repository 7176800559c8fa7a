"""Checks the messages of new commits: one imperative line of at most 72 characters, an empty line, a body.

    tools/check_commits.py [RANGE]    default: the commits that origin/main does not have, or else the last one

Exit status 1 if a message breaks a rule.
"""

from __future__ import annotations

import re
import subprocess
import sys

LONGEST_SUBJECT = 72

# A third person, a past or a progressive form. Verbs that end alike are imperatives.
NOT_IMPERATIVE = re.compile(r"\w+(?:s|ed|ing)$")
IMPERATIVE = re.compile(r"(?:Bring|Embed|Exceed|Feed|Need|Proceed|Seed|Speed|String|Succeed|\w+ss|Focus)$")


def git(*arguments: str) -> str:
    """Returns the output of a git command."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def new_commits() -> list[str]:
    """Returns the commits to check, the newest first."""
    has_main = subprocess.run(["git", "rev-parse", "--verify", "-q", "origin/main"], capture_output=True, check=False)
    chosen = git("rev-list", "--no-merges", "origin/main..HEAD").split() if has_main.returncode == 0 else []
    return chosen or git("rev-list", "--no-merges", "-1", "HEAD").split()


def problems(message: str) -> list[str]:
    """Returns the broken rules of a commit message."""
    subject, _, rest = message.partition("\n")
    found = []
    if len(subject) > LONGEST_SUBJECT:
        found.append(f"the subject has {len(subject)} characters; the limit is {LONGEST_SUBJECT}")
    word = subject.split(" ", 1)[0]
    if not word[:1].isupper() or (NOT_IMPERATIVE.match(word) and not IMPERATIVE.match(word)):
        found.append(f"the subject starts with {word!r}; start with an imperative such as 'Add' or 'Fix'")
    if subject.endswith(".") or ";" in subject:
        found.append("the subject is one line without a semicolon or a final period")
    if not rest.startswith("\n") or not rest.strip():
        found.append("a body after an empty line says why")
    return found


def main() -> int:
    """Prints the broken rules of each commit."""
    commits = git("rev-list", "--no-merges", sys.argv[1]).split() if len(sys.argv) > 1 else new_commits()
    status = 0
    for commit in commits:
        message = git("log", "-1", "--format=%B", commit).strip("\n")
        for problem in problems(message):
            status = 1
            print(f"{commit[:10]} {message.splitlines()[0]}: {problem}")
    return status


if __name__ == "__main__":
    sys.exit(main())
