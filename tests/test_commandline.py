"""Command lines: every spelling of a value, every mistake's message, and text that survives unchanged."""

import dataclasses
import math
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import omegaconf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.commandline import UserError, from_yaml, parse_config, run, to_yaml

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Optim:
    lr: float = 1e-3  # learning rate at the peak
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])  # decay of the two moments
    schedule: Literal["cosine", "constant"] = "cosine"  # shape after warmup

    def __post_init__(self):
        if self.lr == 0:
            raise ValueError("lr must not be 0")


@dataclass
class Base:
    seed: int = 0  # seed of every generator
    name: str = "run"


@dataclass
class Config(Base):
    ckpt: list[str] = field(default_factory=list)  # checkpoints to score
    # A comment on its own is about the code, not about a key.
    sizes: list[int] = field(default_factory=lambda: [1, 2], metadata={"help": "sizes of the sweep"})
    splice: Literal["full", "none"] = "full"
    digits: Literal[1, 2] | None = None
    flag: bool = False
    maybe: bool | None = None
    limit: int | None = None
    budget: int | Literal["auto"] = "auto"
    weight: float | None = 0.5
    note: str | None = None
    tags: list[str] | None = None
    gaps: list[int | None] = field(
        default_factory=list,  # a field over several lines
    )
    out: Path = Path("runs")
    optim: Optim = field(default_factory=lambda: Optim(lr=2e-5))  # the optimiser
    derived: int = field(init=False, default=-1)

    def __post_init__(self):
        self.derived = self.seed * 2
        if self.seed == 13:
            raise ValueError("seed 13 is unlucky")


@dataclass
class Strict:
    ckpt: str
    data: str = omegaconf.MISSING
    inner: "Inner" = field(default_factory=lambda: Inner("x"))


@dataclass
class Inner:
    path: str


@dataclass
class Deep:
    inner: Inner = field(default_factory=Inner)


@dataclass
class Every:
    text: str = ""
    maybe_text: str | None = None
    integer: int = 0
    number: float = 0.0
    flag: bool = False
    texts: list[str] = field(default_factory=list)
    maybe_texts: list[str | None] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    flags: list[bool] | None = None
    inner: Inner = field(default_factory=lambda: Inner(""))


def parse(*argv):
    return parse_config(Config, list(argv))


def error(*argv, schema=Config):
    with pytest.raises(UserError) as caught:
        parse_config(schema, list(argv))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_arguments_give_the_defaults_as_real_instances():
    config = parse()
    assert config == Config() and type(config) is Config and type(config.optim) is Optim
    assert config.optim.lr == 2e-5  # from the field's factory, not from the nested class


@pytest.mark.parametrize("argv", [["name=X"], ["--name=X"], ["--name", "X"]])
def test_three_spellings_are_the_same(argv):
    assert parse(*argv) == Config(name="X")


@pytest.mark.parametrize("argv", [["optim.lr=-1"], ["--optim.lr=-1"], ["--optim.lr", "-1"]])
def test_nested_keys_are_dotted(argv):
    config = parse(*argv)
    assert config.optim == Optim(lr=-1.0) and isinstance(config.optim.lr, float)


@pytest.mark.parametrize(
    ("argument", "key", "value"),
    [
        ("optim.lr=2e-5", "lr", 2e-5),
        ("optim.lr=1", "lr", 1.0),
        ("optim.lr=.inf", "lr", math.inf),
        ("optim.lr=-inf", "lr", -math.inf),
        ("optim.schedule=constant", "schedule", "constant"),
        ("optim.betas=[1,2e-1]", "betas", [1.0, 0.2]),
    ],
)
def test_nested_values_are_typed(argument, key, value):
    assert getattr(parse(argument).optim, key) == value


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("seed=1_000", 1000),
        ("seed=-1", -1),
        ("name=2024_01", "2024_01"),
        ("name=on", "on"),
        ("name=1e3", "1e3"),
        ("name=None", "None"),
        ("name=null", "null"),
        ("name=", ""),
        ("name='a'", "'a'"),
        ("name=[a, {b}]", "[a, {b}]"),
        ("name=${seed}", "${seed}"),
        ("name=${", "${"),
        ("name=???", "???"),
        ("name=a=b", "a=b"),
        ("name=--x", "--x"),
        ("out=my runs/lr=3", Path("my runs/lr=3")),
        ("splice=none", "none"),
        ("digits=2", 2),
        ("digits=null", None),
        ("limit=None", None),
        ("limit=null", None),
        ("limit=3", 3),
        ("budget=3", 3),
        ("budget=auto", "auto"),
        ("weight=none", None),
        ("note=None", None),
        ("note=nothing", "nothing"),
        ("maybe=off", False),
        ("sizes=[]", []),
        ("sizes=[3, 4_0]", [3, 40]),
        ("sizes=7", [7]),
        ("gaps=[1,null,None]", [1, None, None]),
        ("ckpt=a", ["a"]),
        ("ckpt=[a,b]", ["a", "b"]),
        ("ckpt=[2024_01, on, 1e3, None]", ["2024_01", "on", "1e3", "None"]),
        ("ckpt=['a,b', \"${x}\", don't, a b]", ["a,b", "${x}", "don't", "a b"]),
        ("ckpt=null", ["null"]),
        ("ckpt=a,b", ["a,b"]),
        ("tags=null", None),
        ("tags=[]", []),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(argument, value):
    got = getattr(parse(argument), argument.partition("=")[0])
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("word", ["true", "True", "1", "yes", "on", "ON"])
def test_true_words(word):
    assert parse(f"flag={word}").flag is True


@pytest.mark.parametrize("word", ["false", "FALSE", "0", "no", "off"])
def test_false_words(word):
    assert dataclasses.replace(parse(f"maybe={word}")).maybe is False


@pytest.mark.parametrize(
    "argv", [["--flag"], ["--flag", "--seed", "3"], ["--flag", "seed=3"], ["seed=3", "--flag", "on"]]
)
def test_a_flag_alone_is_true(argv):
    assert parse(*argv).flag is True


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["--ckpt", "A", "--ckpt", "B"], ["A", "B"]),
        (["--ckpt", "A", "B"], ["A", "B"]),
        (["--ckpt", "A", "B", "seed=1"], ["A", "B"]),
        (["--ckpt", "A", "--flag", "--ckpt=B", "ckpt=[C,D]"], ["A", "B", "C", "D"]),
        (["--ckpt", "runs/lr=1/x", "my runs/lr=2"], ["runs/lr=1/x", "my runs/lr=2"]),
        (["--ckpt", "-1"], ["-1"]),
    ],
)
def test_a_list_collects(argv, value):
    assert parse(*argv).ckpt == value


def test_a_repeated_scalar_warns_and_the_last_wins(capsys):
    assert parse("seed=1", "--seed", "2").seed == 2
    assert capsys.readouterr().err == "warning: seed is given 2 times; using the last, seed='2'\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sede=1"], "unknown key 'sede'; did you mean 'seed'?"),
        (["--sede", "1"], "unknown key 'sede'; did you mean 'seed'?"),
        (["optim.rl=1"], "unknown key 'optim.rl'; did you mean 'optim.lr'?"),
        (["lr=1"], "unknown key 'lr'; did you mean 'optim.lr'?"),
        (["seed.x=1"], "unknown key 'seed.x'; did you mean 'seed'?"),
        (["zzzzzz=1"], "unknown key 'zzzzzz'; --help lists the keys"),
        (["derived=1"], "unknown key 'derived'; --help lists the keys"),
        (["seed=abc"], "seed='abc': expected an integer"),
        (["seed=1.5"], "seed='1.5': expected an integer"),
        (["seed="], "seed='': expected an integer"),
        (["seed=null"], "seed='null': expected an integer"),
        (["limit=x"], "limit='x': expected an integer or null"),
        (["budget=x"], "budget='x': expected an integer or auto"),
        (["optim.lr=fast"], "optim.lr='fast': expected a number"),
        (["flag=2"], "flag='2': expected true or false"),
        (["--flag", "maybe"], "flag='maybe': expected true or false"),
        (["splice=half"], "splice='half': choose one of full, none"),
        (["digits=3"], "digits='3': choose one of 1, 2, null"),
        (["sizes=[1,x]"], "sizes[1]='x': expected an integer"),
        (["sizes=[1,[2]]"], "sizes[1]=(a list): expected an integer"),
        (["sizes=0,1"], "sizes='0,1': expected an integer; write several as sizes=[0,1,2]"),
        (["sizes=0-2"], "sizes='0-2': expected an integer; write several as sizes=[0,1,2]"),
        (["ckpt=[a: b]"], "ckpt[0]=(a mapping): expected text"),
        (["ckpt=[!a b]"], "ckpt[0]: '!a' is a YAML tag here; put quotes around text that starts with '!'"),
        (["ckpt=[*.txt]"], "ckpt='[*.txt]': not a list such as [a,b]; put quotes around unusual elements"),
        (["ckpt=[a]-[b]"], "ckpt='[a]-[b]': not a list such as [a,b]; put quotes around unusual elements"),
        (["ckpt="], "a value is missing after ckpt="),
        (["--seed"], "a value is missing after --seed"),
        (["--seed", "--flag"], "a value is missing after --seed; if '--flag' is the value, write seed=--flag"),
        (["--ckpt", "seed=0"], "a value is missing after --ckpt; if 'seed=0' is the value, write ckpt=seed=0"),
        (["seed"], "unexpected argument 'seed': write seed=VALUE or --seed VALUE"),
        (["--seed", "1", "2"], "unexpected argument '2': write key=value, --key value, or a YAML file first"),
        (["--"], "unexpected argument '--': write key=value, --key value, or a YAML file first"),
        (["seed=1", "a.yaml"], "'a.yaml' comes after a key: YAML files go before the keys"),
        (["optim=x"], "'optim' is a group of keys: set optim.lr, optim.betas, optim.schedule"),
        (["seed=13"], "seed 13 is unlucky"),
        (["optim.lr=0"], "optim: lr must not be 0"),
        (["no/such.yaml"], "cannot read the configuration file 'no/such.yaml': No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(argv, message):
    assert error(*argv) == message


def test_required_keys():
    assert error(schema=Strict) == "missing ckpt, data: give ckpt=VALUE or --ckpt VALUE"
    assert parse_config(Strict, ["ckpt=a", "data=???"]) == Strict("a", "???", Inner("x"))
    assert error(schema=Deep) == "missing inner.path: give inner.path=VALUE or --inner.path VALUE"
    assert parse_config(Deep, ["inner.path=p"]) == Deep(Inner("p"))


@pytest.mark.parametrize("hint", [dict[str, int], int | str, list[str] | int, tuple[int, ...], Inner | None])
def test_a_schema_that_a_command_line_cannot_fill_is_refused(hint):
    with pytest.raises(TypeError, match="field x: "):
        parse_config(dataclasses.make_dataclass("Bad", [("x", hint, None)]), [])


def test_yaml_files_come_first_later_wins_and_keys_win_over_files(tmp_path):
    one, two = tmp_path / "one.yaml", tmp_path / "lr=2.yml"
    one.write_text("seed: 1\nname: 2024_01\nckpt: [a, on]\noptim:\n  lr: 1e-4\n  schedule: constant\nnote: x\n")
    two.write_text("# comment\nseed: 2\noptim.lr: 3\nckpt: b\nnote: None\nsplice: none\nflag: yes\n")
    config = parse(str(one), str(two), "seed=3")
    assert config == Config(
        seed=3, name="2024_01", ckpt=["b"], optim=Optim(lr=3.0, schedule="constant"), splice="none", flag=True
    )
    assert parse(str(one)).ckpt == ["a", "on"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nsede: 2\n", ":2: unknown key 'sede'; did you mean 'seed'?"),
        ("optim:\n  rl: 2\n", ":2: unknown key 'optim.rl'; did you mean 'optim.lr'?"),
        ("optim:\n  lr: x\n", ":2: optim.lr='x': expected a number"),
        ("name: null\n", ":1: name=null: expected text"),
        ("name:\n", ":1: name=null: expected text"),
        ("sizes:\n", ":1: sizes=null: expected a list such as [a,b]"),
        ("seed: [1]\n", ":1: seed=(a list): expected an integer"),
        ("ckpt: {a: b}\n", ":1: ckpt=(a mapping): expected a list such as [a,b]"),
        ("seed: 1\nname: x\nseed: 2\n", ":3: 'seed' is given twice in this file"),
        ("optim: fast\n", ":1: 'optim' is a group of keys: set optim.lr, optim.betas, optim.schedule"),
        ("- a\n- b\n", ":1: expected 'key: value' lines"),
        ("# x\nhello\n", ":2: expected 'key: value' lines"),
        ("[a]: b\n", ":1: a key must be a name"),
        ("seed: 1\n  name: x\n", ":2: not valid YAML: mapping values are not allowed here"),
        ("seed: 1\nname: \x07\n", ":2: not valid YAML: character U+0007 is not allowed"),
        ("seed: 1\n---\nseed: 2\n", ":2: not valid YAML: but found another document"),
    ],
)
def test_a_mistake_in_yaml_names_file_and_line(tmp_path, text, message):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert error(str(path)) == f"{path}{message}"
    with pytest.raises(UserError, match="c.yaml:"):
        from_yaml(Config, path)


def test_yaml_without_settings_sets_nothing(tmp_path):
    path = tmp_path / "c.yaml"
    for text in ["", "# nothing\n", "optim:\n  # lr: 3\n"]:
        path.write_text(text)
        assert from_yaml(Config, path) == Config()


def test_yaml_that_is_not_text(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert error(str(path)) == f"cannot read the configuration file '{path}': it is not UTF-8 text"
    assert "Is a directory" in error(str(tmp_path.rename(tmp_path.with_suffix(".yaml"))))


def test_to_yaml_keeps_the_order_of_the_fields_and_leaves_out_what_is_derived():
    text = to_yaml(parse("ckpt=[a,2024_01]", "note=null", "name=null"))
    assert text.startswith("seed: 0\nname: 'null'\nckpt:\n- a\n- '2024_01'\nsizes:\n")
    assert "\nnote: null\n" in text and "\nout: runs\n" in text and "derived" not in text
    assert text.endswith("optim:\n  lr: 2.0e-05\n  betas:\n  - 0.9\n  - 0.95\n  schedule: cosine\n")


TEXT = st.text(st.characters()) | st.sampled_from(
    # What YAML or OmegaConf would read as something else than text, blanks, line breaks and signs of YAML.
    "null|None|none|~|on|1e3|2024_01|???|${x}|${|\\${x}| x|x |a\n\n b\n|\r\n|\x85|\u2028|\ufeff|\ud800|\t".split("|")
    + """- a|a: b|a #b|#|'|"|\\|[a,b]|{a}|!a|&a|*a|%a|@|`|--help|=|<<|? a""".split("|")
)
EVERY = st.builds(
    Every,
    text=TEXT,
    maybe_text=st.none() | TEXT,
    integer=st.integers(),
    number=st.floats(allow_nan=False),
    flag=st.booleans(),
    texts=st.lists(TEXT, max_size=4),
    maybe_texts=st.lists(st.none() | TEXT, max_size=4),
    numbers=st.lists(st.floats(allow_nan=False), max_size=3),
    flags=st.none() | st.lists(st.booleans(), max_size=3),
    inner=st.builds(Inner, TEXT),
)


@given(TEXT)
def test_any_text_survives_the_command_line(text):
    assert parse_config(Every, [f"text={text}"]).text == text
    assert parse_config(Every, [f"--text={text}"]).text == text
    assert parse_config(Every, [f"inner.path={text}"]).inner.path == text
    if text.lower() not in ("null", "none"):
        assert parse_config(Every, [f"maybe_text={text}"]).maybe_text == text
    if text and not (text.startswith("[") and text.endswith("]")):
        assert parse_config(Every, [f"texts={text}"]).texts == [text]


@given(EVERY)
def test_any_config_survives_yaml(config):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_bytes(to_yaml(config).encode("utf-8"))
        assert from_yaml(Every, path) == config
        assert parse_config(Every, [str(path)]) == config


def test_nan_survives_yaml(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(to_yaml(Every(number=math.nan)))
    assert math.isnan(from_yaml(Every, path).number)


HELP = """\
Score checkpoints.

For instance:
  a line with its indent

key             type                  default     meaning
seed            integer               0           seed of every generator
name            text                  run
ckpt            list of text          []          checkpoints to score
sizes           list of integer       [1,2]       sizes of the sweep
splice          full, none            full
digits          1, 2 or null          null
flag            true/false            false
maybe           true/false or null    null
limit           integer or null       null
budget          integer or auto       auto
weight          number or null        0.5
note            text or null          null
tags            list of text or null  null
gaps            list of (integer or   []          a field over several lines
                null)
out             path                  runs
optim.                                            the optimiser
optim.lr        number                2e-05       learning rate at the peak
optim.betas     list of number        [0.9,0.95]  decay of the two moments
optim.schedule  cosine, constant      cosine      shape after warmup

key=value"""


@pytest.mark.parametrize("argv", [["-h"], ["sede=1", "--help", "no.yaml"]])
def test_help_lists_key_type_default_and_meaning(capsys, argv):
    with pytest.raises(SystemExit) as stopped:
        parse_config(Config, argv, description="Score checkpoints.\n\nFor instance:\n  a line with its indent\n")
    out = capsys.readouterr().out
    assert stopped.value.code == 0
    assert out.startswith("usage: python ") and HELP in out
    assert all(len(line) <= 100 for line in out.splitlines()[1:])


def test_help_wraps_and_marks_required_and_odd_defaults(capsys):
    meaning = "word " * 40
    schema = dataclasses.make_dataclass(
        "Wide",
        [
            ("need", str, field(metadata={"help": meaning})),
            ("empty", str, ""),
            ("lines", str, "a\nb"),
            ("long", str, "x" * 300),
        ],
    )
    with pytest.raises(SystemExit):
        parse_config(schema, ["-h"], description="word " * 50)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 120 for line in lines[1:])
    assert any(line.startswith("need   text  (required)") for line in lines)
    assert any(line.startswith("empty  text  ''") for line in lines)
    assert any(line.startswith(r"lines  text  'a\nb'") for line in lines)
    assert sum(line.count("word") for line in lines) == 90


def test_print_config_is_the_resolved_yaml(capsys):
    with pytest.raises(SystemExit) as stopped:
        parse("--print-config", "seed=4")
    assert stopped.value.code == 0
    assert capsys.readouterr().out == to_yaml(Config(seed=4))
    assert error("--print-config", "sede=4").startswith("unknown key")


def test_run_hands_the_config_over_and_returns(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["prog", "seed=5"])
    seen = []
    assert run(seen.append, Config, description="d") is None
    assert seen == [Config(seed=5)]


SCRIPT = """
from dataclasses import dataclass

from decoding.commandline import UserError, run


@dataclass
class Config:
    seed: int = 0  # what to do


def main(config):
    if config.seed == 1:
        raise UserError("first line\\nsecond line")
    if config.seed == 2:
        raise KeyboardInterrupt
    if config.seed == 3:
        raise ValueError("a fault of the program")
    print("seed", config.seed)


run(main, Config, description="A script.")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)

    def call(*argv, **environment):
        clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK")}
        done = subprocess.run(
            [sys.executable, str(path), *argv],
            env=clean | {"PYTHONPATH": str(ROOT)} | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    return call


def test_exit_codes_and_single_lines(script):
    assert script("seed=7") == (0, "seed 7\n", "")
    assert script("sede=7") == (2, "", "error: unknown key 'sede'; did you mean 'seed'?\n")
    assert script("seed=1") == (2, "", "error: first line second line\n")
    assert script("seed=2") == (130, "", "interrupted\n")
    code, _, err = script("seed=3")
    assert code == 1 and "Traceback" in err and "a fault of the program" in err
    code, out, err = script("--help")
    assert (code, err) == (0, "") and "seed  integer  0        what to do" in out


def test_only_rank_zero_prints(script):
    line = "error: unknown key 'sede'; did you mean 'seed'?\n"
    assert script("sede=7", RANK="1", LOCAL_RANK="0") == (2, "", "")
    assert script("sede=7", LOCAL_RANK="1") == (2, "", "")
    assert script("sede=7", RANK="0", LOCAL_RANK="0") == (2, "", line)
    assert script("--help", RANK="1") == (0, "", "")


@pytest.fixture
def checkout(tmp_path):
    """A clone with a script, and code of its own."""
    clone = tmp_path / "clone"
    for name in ("decoding", "recipes"):
        (clone / name).mkdir(parents=True)
        (clone / name / "__init__.py").touch()
    shutil.copy(ROOT / "decoding" / "commandline.py", clone / "decoding")
    (clone / "recipes" / "script.py").write_text(SCRIPT)
    (clone / "pyproject.toml").touch()
    return clone


def started(*argv, cwd, code):
    """Run Python with the packages of the checkout ``code``, as if it were the one that is installed."""
    call = subprocess.run(
        [sys.executable, *map(str, argv)],
        env={k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK")} | {"PYTHONPATH": str(code)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return call.returncode, call.stdout, call.stderr


def test_a_script_of_one_checkout_does_not_run_with_the_code_of_another(checkout, tmp_path):
    (tmp_path / "link.py").symlink_to(checkout / "recipes" / "script.py")
    for script in ("clone/recipes/script.py", "link.py"):
        code, out, err = started(script, cwd=tmp_path, code=ROOT)
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert err.startswith(f"error: {script} belongs to the code in {checkout}, but the code in {ROOT} is installed")
        assert f"pip install -e {checkout}, or set PYTHONPATH={checkout}" in err


def test_a_script_runs_with_the_code_beside_it_and_a_script_of_another_project_with_any(checkout, tmp_path):
    done = (0, "seed 7\n", "")
    (tmp_path / "installed").symlink_to(checkout)
    assert started("recipes/script.py", "seed=7", cwd=checkout, code=checkout) == done
    assert started("recipes/script.py", "seed=7", cwd=checkout, code=tmp_path / "installed") == done
    assert started("-m", "recipes.script", "seed=7", cwd=checkout, code=ROOT) == done  # -m puts the checkout first
    shutil.rmtree(checkout / "decoding")
    assert started("recipes/script.py", "seed=7", cwd=checkout, code=ROOT) == done


def test_the_module_imports_no_torch():
    code = "import sys, decoding.commandline; assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
