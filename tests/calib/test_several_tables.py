"""Several files that make one profile: which of two kinds each is, what it may not share, and how they are joined."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from synthetic import decode_us, rows, text
from test_fit_experts import SHAPES, write
from typer.testing import CliRunner

from calib.tables import UNEQUAL
from simkit.cli import app

RATE_US, LAYERS = 0.02, 3
NAMED = ("--name", "mine", "--gpu-spec", "a100-sxm4-80gb", "--out", "mine.json")


def unequal_text(factor: float = 1.0, columns: tuple[str, ...] = UNEQUAL) -> str:
    """Decodes that take what equal ones of mean length do, and more at a known rate, times of three layers."""
    lines = ["regime," + ",".join(columns)]
    for n, long, count in itertools.product((32, 64, 96, 128), (1024, 4096, 16384), (1, 4, 8)):
        short = long // 16
        mean = ((n - count) * short + count * long) / n
        alone, at_longest = decode_us(n, mean, 32, 8), decode_us(n, long, 32, 8)
        times = [factor * LAYERS * us for us in (alone + RATE_US * (long - mean), alone, at_longest)]
        sizes = {"n": n, "nb": count, "kv_big": long, "kvs": short, "pc": 0, "kp": 0}
        cells = sizes | dict(zip(UNEQUAL[6:], times, strict=True))
        lines.append("pure," + ",".join(str(cells[name]) for name in columns))
    return "\n".join(lines) + "\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of a kernel table: whole, and by op; and tables of unequal decodes."""
    monkeypatch.chdir(tmp_path)
    found = list(rows())
    files = {
        "whole.csv": text(found),
        "gemm.csv": text([row for row in found if row["op"] == "gemm"]),
        "attention.csv": text([row for row in found if row["op"] != "gemm"]),
        "unequal.csv": unequal_text(),
        "short.csv": unequal_text(columns=tuple(name for name in UNEQUAL if name != "kvs")),
        "seconds.csv": unequal_text(1e-6),
        "empty.csv": unequal_text(-1.0),
        "own.csv": text([*found, {"op": "attention_skew", "batch": 4, "kv_len": 8, "decode_batch": 1,
                                  "decode_kv_len": 64, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128,
                                  "latency_us": 20.0}]),
        "other.csv": "time,prompt,output\n1,2,3\n",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def calibrate(*paths: str) -> tuple[int, str, str]:
    given = [word for path in paths for word in ("--from-csv", path)]
    done = CliRunner().invoke(app.app, ["calibrate", *given, *NAMED])
    return done.exit_code, done.stdout, done.stderr


def test_parts_of_a_table_make_the_profile_of_the_whole(home: Path) -> None:
    found = {}
    for paths in (("whole.csv",), ("attention.csv", "gemm.csv")):
        assert calibrate(*paths)[0] == 0
        found[paths] = json.loads((home / "mine.json").read_text())
    whole, parts = found.values()
    assert parts["ops"] == whole["ops"]
    assert parts["provenance"]["table_rows"] == whole["provenance"]["table_rows"]
    assert [part["file"] for part in parts["provenance"]["tables"]] == ["attention.csv", "gemm.csv"]
    assert parts["provenance"]["table_sha256"] == parts["provenance"]["tables"][0]["sha256"]
    assert "tables" not in whole["provenance"]


@pytest.mark.parametrize("paths", [("whole.csv", "unequal.csv"), ("unequal.csv", "gemm.csv", "attention.csv")])
def test_a_table_of_unequal_decodes_is_known_by_its_columns_wherever_it_stands(
    home: Path, paths: tuple[str, ...]
) -> None:
    code, out, err = calibrate(*paths)
    assert code == 0, err
    skew = json.loads((home / "mine.json").read_text())["skew"]
    assert (skew["measured"], skew["heads"]) == (True, [[32, 8, 128]])
    assert skew["us_per_token"] == pytest.approx(RATE_US, rel=0.1)
    assert "decodes of unequal length: " in out
    assert "unequal.csv: decodes of unequal length, times of 3 layers with 32 heads, 8 KV heads and head_dim 128" in err


def test_rows_of_unequal_decodes_that_cannot_be_true_are_left_out_and_told(home: Path) -> None:
    """More long decodes than decodes, long ones that are the shorter, half a decode, no time."""
    bad = ["8,9,64,8,0,0,3,2,4", "8,1,8,64,0,0,3,2,4", "8.5,1,64,8,0,0,3,2,4", "8,1,64,8,0,0,,2,4"]
    lines = unequal_text().splitlines() + [f"pure,{row}" for row in bad]
    (home / "unequal.csv").write_text("\n".join(lines), encoding="utf-8")
    code, _, err = calibrate("whole.csv", "unequal.csv")
    assert code == 0
    first = len(lines) - len(bad) + 1
    for line, column in enumerate(("nb", "kv_big", "n", "t_skew_us"), first):
        assert f"note: unequal.csv:{line}: {column} is missing or out of range" in err.splitlines()


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("other.csv",), "other.csv:1: expected the columns of a kernel table (op, dtype, "),
        (("whole.csv", "other.csv"), "of a table of unequal decodes (n, nb, kv_big, kvs, pc, kp, t_skew_us"),
        (("unequal.csv",), "unequal.csv: a table of unequal decodes alone: expected a kernel table beside it"),
        (("unequal.csv", "whole.csv", "unequal.csv"), "unequal.csv: unequal.csv is a table of unequal decodes as well"),
        (
            ("whole.csv", "gemm.csv"),
            "whole.csv has gemm bfloat16 m=1 n=256 k=256 as well: expected a shape in one file",
        ),
        (("whole.csv", "whole.csv"), "whole.csv: whole.csv has attention_decode bfloat16 num_heads=8 num_kv_heads=1 "),
        (
            ("own.csv", "unequal.csv"),
            "unequal.csv: own.csv has attention_skew as well: expected unequal decodes in one",
        ),
        (("whole.csv", "short.csv"), "short.csv:1: missing column kvs, which a table of unequal decodes needs"),
        (("whole.csv", "empty.csv"), "empty.csv: no usable row; empty.csv:2: t_skew_us is missing or out of range"),
        (("whole.csv", "seconds.csv"), "t_mean_us: the median launch of equal decodes takes 1e-06 x what attention_"),
        (("whole.csv", "none.csv"), "none.csv: no such file"),
        (("gemm.csv", "unequal.csv"), "no usable row of attention_decode, attention_prefill: a profile needs"),
    ],
)
def test_files_that_make_no_profile_are_one_line_and_2(home: Path, paths: tuple[str, ...], message: str) -> None:
    code, out, err = calibrate(*paths)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (home / "mine.json").exists()


def test_routed_experts_come_in_a_file_of_their_own_or_with_the_others(home: Path) -> None:
    """Under the columns of their tables; a format that is not known, and a kernel that is at fault, are told."""
    write(home / "experts.csv", SHAPES, more="moe,w4a8_mxfp4_mxfp8,1,64,8,2048,1024,1,1,balanced,k,9.0,made up\n")
    code, _, err = calibrate("whole.csv", "experts.csv")
    assert code == 0, err
    (found,) = [op for op in json.loads((home / "mine.json").read_text())["experts"] if op["op"] == "moe"]
    assert (found["dtype"], len(found["shapes"])) == ("bfloat16", len(SHAPES))
    assert "note: experts.csv: 1 rows of moe w4a8_mxfp4_mxfp8: not known, ignored" in err.splitlines()
    assert calibrate("experts.csv")[0] == 2
    code, _, err = calibrate("whole.csv", "experts.csv", "experts.csv")
    assert (code, "has rows of moe as well: expected experts in one file" in err) == (2, True)
