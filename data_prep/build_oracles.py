"""Prepare oracle programs: corpora of edits to programs, splits, statistics, and a fingerprint.

    python data_prep/build_oracles.py                                           # the paper's combined set
    python data_prep/build_oracles.py corpora=[pyfix] pyfix.cases=2000 out=data/pyfix seed=1
    python data_prep/build_oracles.py corpora=[bugs] bugs.source=[../app] bugs.languages=[js,go] out=data/app
    python data_prep/build_oracles.py corpora=[jsonl] jsonl=[my_edits.jsonl] out=data/mine
    python data_prep/build_oracles.py corpora=[git] git.repo=[../app] out=data/commits
    python data_prep/build_oracles.py corpora=[hub] hub.path=bigcode/commitpackft hub.name=python out=data/hub
    python data_prep/build_oracles.py corpora=[formatter] formatter.source=[../app] out=data/layout
    python data_prep/build_oracles.py corpora=[hevalfix-py] tokenizer=Qwen/Qwen2.5-Coder-1.5B-Instruct
    python data_prep/build_oracles.py program=fewest_ops min_copy=2 equivalents=2 out=data/shorter

Corpora: hevalfix-{py,js,java,go,cpp,rust} (HumanEvalPack, from data_dir=, CAD_DATA_DIR or the hub), probeedit
(generated prose edits), pyfix (bugs injected into this Python's standard library, or into pyfix.source=, a package or
a folder), bugs (the same for JavaScript, Java, Go, C++ and Rust in bugs.source=), formatter (code and what a formatter
makes of it), jsonl (your own instruction/before/after rows), git (commits of local repositories), hub (a data set on
the hub, or files with columns). Writes OUT/CORPUS/{train,heldout}.jsonl, OUT/rejected.jsonl and, last,
OUT/manifest.json. inspect_data.py reports on what was prepared.

synthesize_instructions=true makes an instruction from the edit for jsonl rows that have none. Refused on request:
hygiene.near_duplicates=true, edits that are nearly an earlier one; hygiene.drop_leaks=[same_gold,near_document,...],
training edits that show held-out ones of this folder or of those in hygiene.held_out=. Rows stay on disk; thousands
are made on every core (workers=), and a build that was stopped goes on when the same command is given again.

Programs are difflib's. Others can be trained on: program=fewest_ops (moved and repeated lines are copied too) or
program=fewest_ops_monotone (for strategy=monotone, copies in the document's order; often difflib's); min_copy=M writes
out copies of fewer lines, as min_span=M decodes; merge_text_free=true writes out copies of blank lines and brackets;
equivalents=K adds up to K training rows an edit with other programs for it. Held-out edits keep difflib's, so that
every choice is scored on the same file.
"""

from __future__ import annotations

from dataclasses import dataclass

from data_prep.build import OracleConfig, build_oracles
from decoding.commandline import run
from decoding.console import markdown_table, track


@dataclass
class Config(OracleConfig):
    """What to prepare."""


def main(config: Config) -> None:
    """Build, then say what was built."""
    print(summarise(build_oracles(config, progress=track), config.out))


def summarise(manifest: dict, out: str) -> str:
    """Return the table a person reads after a build: what came in, what was refused, what the programs look like."""
    columns = ["corpus", "offered", "refused", "train", "held out", "copies", "gens", "copied"]
    counted = [key for key in ("T", "T_copy", "K") if all(key in e["statistics"] for e in manifest["corpora"].values())]
    rows = []
    for name, entry in manifest["corpora"].items():
        stats = entry["statistics"]
        share = "-" if stats["copied_share"] is None else f"{stats['copied_share']:.1%}"
        counts = [entry["offered"], sum(entry["rejected"].values()), entry["train"], entry["heldout"]]
        rows.append([name, *counts, stats["copy_ops"], stats["gen_ops"], share, *(stats[key] for key in counted)])
    text = [markdown_table([*columns, *counted], rows)]
    for name, entry in manifest["corpora"].items():
        for split, label in (("train", "to train on"), ("heldout", "held out")):
            if not entry[split] and entry["train"] + entry["heldout"] and manifest["settings"]["heldout"]:
                met = (
                    "each by its hash, so that on average they make"
                    if name == "datatrove"
                    else "as near as they come to"
                )
                text.append(
                    f"{name}: no edit is {label}, for whole groups are held out (edits of one file or problem), {met} "
                    f"heldout={manifest['settings']['heldout']}: give more edits or another share"
                )
        if entry["over_limit"]:
            text.append(f"{name}: {entry['over_limit']} left out by limit")
        if entry["equivalents"]:
            text.append(f"{name}: {entry['equivalents']} more training rows with other programs")
        if "instructions_made" in entry:
            made, inexact = entry["instructions_made"], entry["instructions_inexact"]
            text.append(f"{name}: {made} instructions made from the edit, {inexact} of them leave open what to write")
        for label, counts in (("refused", entry["rejected"]), ("tagged", entry["tags"])):
            if counts:
                text.append(
                    f"{name}: {label} " + ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
                )
        text += _found_tables(name, entry.get("found"))
    if any(entry["rejected"] for entry in manifest["corpora"].values()):
        text.append(f"every refused row is in {out}/rejected.jsonl")
    text.append(f"wrote {out}, fingerprint {manifest['fingerprint'][:16]}")
    return "\n".join(text)


def _found_tables(name: str, found: dict | None) -> list[str]:
    """What a generator of bugs found, used and left out, and the bugs by language and kind."""
    if not found:
        return []
    lines = []
    for what in ("files", "functions", "bugs"):
        counts = ", ".join(f"{count} {reason}" for reason, count in found[what].items())
        lines.append(f"{name}: {what}: {counts}")
    kinds = list(next(iter(found["kinds"].values())))
    rows = [[language, *(counts[kind] for kind in kinds)] for language, counts in found["kinds"].items()]
    return [*lines, markdown_table([f"{name}: bugs", *kinds], rows)]


if __name__ == "__main__":
    run(main, Config, description=__doc__)
