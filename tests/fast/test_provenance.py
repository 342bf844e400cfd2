"""Provenance tells where a checkpoint came from, and no secret."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import holdfast
from holdfast.provenance import REDACTED, document, git_state, libraries, redact, redact_mapping

SECRETS = st.text("abcXYZ0189+/=_-.!$#", min_size=12, max_size=40).filter(lambda text: text.strip("-"))
NAMES = st.sampled_from(
    [
        "api-key", "api_key", "apiKey", "API_KEY", "token", "hf-token", "access_token", "authToken", "password",
        "db.password", "passwd", "secret", "client-secret", "my_secret_thing", "aws_secret_access_key", "credentials",
        "private-key", "auth", "logger.wandb.api_key", "tokens", "bearer", "sas-token", "pwd",
    ]
)  # fmt: skip
KNOWN = st.sampled_from(
    [
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz12345678",
        "sk-proj-abcdEFGH1234abcdEFGH1234",
        "ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "github_pat_11ABCDEFG0abcdefghijkl",
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-123456789012-abcdefghijkl",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-DEF_123",
    ]
)
HARMLESS = ["python", "train.py", "--lr", "0.1", "--epochs=10", "data/train"]


@st.composite
def command_lines(draw):
    """A command line with one secret in it, and the secret."""
    secret, name = draw(SECRETS), draw(NAMES)
    assume("@" not in secret and "/" not in secret[:1])
    assume(not re.match(r"\d{1,5}/", secret))  # in a URL nobody could tell it from a port and a path
    words = draw(
        st.sampled_from(
            [
                [f"--{name}={secret}"],
                [f"--{name}", secret],
                [f"-{name}", secret],
                [f"{name}={secret}"],
                [f"+{name}={secret}"],
                [f"https://user:{secret}@example.org/model.git"],
                ["--config", json.dumps({"lr": 0.1, name: secret})],
                ["--config", repr({name: [secret]})],
                ["--header", f"X-{name}: {secret}"],
                ["--url", f"https://example.org/get?{name}={secret}&page=2"],
                [f"--config.{name}={secret}"],
                [f"--set=trainer.{name}={secret}"],
            ]
        )
        | KNOWN.flatmap(
            lambda known: st.sampled_from([[known], [f"--anything={known}"], [f"x/{known}/y"], [f"a b {known}"]])
        )
    )
    known = [word for word in ("hf_", "sk-", "ghp_", "github_pat_", "AKIA", "xoxb-", "eyJ") if word in words[-1]]
    planted = secret if secret in "".join(words) else words[-1][words[-1].index(known[0]) :].split("/")[0]
    at = draw(st.integers(0, len(HARMLESS)))
    return [*HARMLESS[:at], *words, *HARMLESS[at:]], planted


@given(command_lines())
def test_no_planted_secret_survives_in_a_command_line(planted):
    """Whatever has a telling name, stands in a URL's user info, or has a well-known form, is not told."""
    argv, secret = planted
    told = redact(argv)
    assert len(argv) == len(told)
    assert not [word for word in told if secret in word]


PLAIN = st.text("lrxyz", min_size=1)  # spells no telling name
VALUES = st.recursive(
    st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(PLAIN, inner),
    max_leaves=6,
)


@given(
    st.dictionaries(st.text(), VALUES, max_size=3),
    NAMES,
    SECRETS,
    st.lists(st.sampled_from(["a", 0]), max_size=5),
    st.booleans(),
)
def test_no_planted_secret_survives_in_hyperparameters(harmless, name, secret, path, listed):
    """At any depth, under any telling key; what remains can be written as JSON."""
    planted: Any = {name: [secret] if listed else secret}
    for part in path:
        planted = [planted] if part == 0 else {part: planted}
    told = redact_mapping({**harmless, "planted": planted})
    assert json.dumps(secret)[1:-1] not in json.dumps(told)


@given(st.dictionaries(PLAIN, VALUES, max_size=4))
def test_harmless_hyperparameters_are_told_as_they_are(hyperparameters):
    """Numbers, text, lists and mappings without telling names go into the manifest unchanged."""
    assert hyperparameters == redact_mapping(hyperparameters)


@pytest.mark.parametrize(
    "argv",
    [
        HARMLESS,
        ["train.py", "--max-tokens", "512", "--tokenizer=bert", "--num_tokens=3", "--monkey", "business"],
        ["train.py", "--model", "hf_transformers", "--data", "s3://bucket/key/x", "--author", "me", "C:\\data"],
        ["https://example.org:8080/a@b", "file:///x", "--compass", "north", "sk-learn"],
        [],
    ],
)
def test_harmless_words_are_told_as_they_are(argv):
    """A command that hides nothing can be typed again from the manifest."""
    assert argv == redact(argv)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("https://u:p@host/x", f"https://{REDACTED}@host/x"),
        ("postgres://u:p/ss@host/db", f"postgres://{REDACTED}@host/db"),
        ("--api-key=a=b c", f"--api-key={REDACTED}"),
        ("{'token': 'abc', 'lr': 1}", f"{{'token': {REDACTED}, 'lr': 1}}"),
        ("Authorization: Bearer abc def", f"Authorization: {REDACTED}"),
        ("a=1&token=abc&b=2", f"a=1&token={REDACTED}"),
    ],
)
def test_what_surrounds_a_secret_stays(word, expected):
    """A reader sees that something was hidden, and where."""
    assert [expected] == redact([word])


def test_a_list_of_secrets_is_hidden_up_to_the_next_option():
    """`--tokens a b --lr 1` hides both."""
    assert ["--tokens", REDACTED, REDACTED, "--lr", "1"] == redact(["--tokens", "a", "b", "--lr", "1"])


def test_a_mapping_that_holds_itself_ends():
    """Odd hyperparameters cost detail, never the save."""
    loop: dict[str, Any] = {"lr": 1}
    loop["self"] = loop
    assert redact_mapping(loop)["lr"] == 1


def test_objects_are_told_as_short_text():
    """An object among the hyperparameters is its text, without the secrets in it."""

    class Config:
        def __str__(self):
            return "Config(token='abc', lr=3)" + "." * 10_000

    told = redact_mapping({"config": Config(), 3: b"x", "path": ("a", {"b"})})
    assert told["config"].startswith(f"Config(token={REDACTED}, lr=3)")
    assert len(told["config"]) < 2000
    assert json.dumps(told)


# git -------------------------------------------------------------------------------------------------------


def git(directory, *words):
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *identity, *words], cwd=directory, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("print()\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    git_state.cache_clear()
    yield tmp_path
    git_state.cache_clear()


def test_git_tells_commit_and_dirtiness(repository):
    """A clean tree is told by its commit alone; a changed tracked file makes it dirty, a new file does not."""
    commit = git(repository, "rev-parse", "HEAD").strip()
    (repository / "runs").mkdir()
    (repository / "runs" / "x").write_text("")
    assert {"commit": commit, "dirty": False} == git_state(str(repository))
    git_state.cache_clear()
    (repository / "train.py").write_text("changed\n")
    assert {"commit": commit, "dirty": True} == git_state(str(repository))


def test_git_inside_a_hook_is_the_scripts_own(repository, monkeypatch, tmp_path_factory):
    """GIT_DIR of a calling hook names another repository, and is not followed."""
    other = tmp_path_factory.mktemp("other")
    git(other, "init")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    state = git_state(str(repository))
    assert state is not None
    assert state["commit"] is not None


def test_under_holdfasts_own_command_git_is_that_of_the_folder_where_it_works(repository, monkeypatch):
    """Not that of the environment in which Holdfast is installed: `holdfast run --app gromacs -- gmx mdrun`."""
    monkeypatch.chdir(repository)
    commit = git(repository, "rev-parse", "HEAD").strip()
    for script in (Path(sys.executable).parent / "holdfast", Path(holdfast.__file__).parent / "__main__.py"):
        git_state.cache_clear()
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
        assert commit == document()["git"]["commit"]


def test_a_repository_without_commits_has_none(tmp_path):
    """The moment between `git init` and the first commit is a state like any other."""
    git(tmp_path, "init")
    assert {"commit": None, "dirty": False} == git_state(str(tmp_path))


def test_no_repository_and_no_git_is_none(tmp_path, monkeypatch):
    """Provenance that cannot be had is null, and never an error."""
    assert git_state(str(tmp_path)) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(str(tmp_path / "elsewhere")) is None
    (tmp_path / "here").mkdir()
    assert git_state(str(tmp_path / "here")) is None


def test_git_leaves_the_index_alone(repository):
    """Asking takes no lock and refreshes no index that a person's own git may be using."""
    index = repository / ".git" / "index"
    (repository / "train.py").touch()
    before = index.read_bytes()
    git_state(str(repository))
    assert before == index.read_bytes()


# the whole document ------------------------------------------------------------------------------------------


def test_the_document_is_json_and_complete():
    """What a manifest wants to know of the process, under these names."""
    told = document({"lr": 0.1, "api_key": "x"}, dataset="digits")
    assert {"hyperparameters", "dataset", "git", "libraries", "python", "host", "command"} == set(told)
    assert {"lr": 0.1, "api_key": REDACTED} == told["hyperparameters"]
    assert "digits" == told["dataset"]
    assert json.dumps(told)


def test_the_document_tells_no_environment_variable(monkeypatch):
    """Environments are where credentials live: no value of one is ever told, whatever its name."""
    monkeypatch.setenv("HARMLESS_NAME", "plantedValue42")
    assert "plantedValue42" not in json.dumps(document({"a": 1}))


def test_only_imported_libraries_are_told_and_none_is_imported(monkeypatch):
    """Asking for versions costs no import."""
    numpy = importlib.import_module("numpy")
    assert numpy.__version__ == libraries()["numpy"]
    for name in ("torch", "numpy", "jax", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert {"torch", "numpy", "jax", "keras"}.isdisjoint(libraries())
    assert {"torch", "numpy", "jax", "keras"}.isdisjoint(sys.modules)
