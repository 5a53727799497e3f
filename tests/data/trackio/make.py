"""Makes the file of this folder with the real client (trackio 0.43).

    python tests/data/trackio/make.py

Tables and indices that have nothing to do with a run's numbers are taken out, which makes it small.
`expected.json` is what trackio's own reading says of the metrics.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

FOLDER = tempfile.mkdtemp()
os.environ["TRACKIO_DIR"] = FOLDER
import trackio  # noqa: E402
from trackio.sqlite_storage import SQLiteStorage  # noqa: E402

HERE = Path(__file__).parent
KEPT = ("metrics", "configs", "alerts", "system_metrics")


def run(name: str, bad: int | None) -> None:
    trackio.init(project="project", name=name, config={"lr": 1e-3, "batch_size": 8, "o": {"b": 1}})
    for step in range(40):
        loss = 2.5 * 0.95**step
        if bad is not None and step >= bad:
            loss = math.nan if step % 2 else -math.inf
        trackio.log({"loss": loss, "opt": {"lr": 1e-3}})
    if bad is not None:
        trackio.alert(title="loss", text="it is NaN", level=trackio.AlertLevel.ERROR)
    trackio.finish()


if __name__ == "__main__":
    run("before", None)
    run("faulty", 30)
    shutil.copy(Path(FOLDER) / "project.db", HERE / "project.db")
    rows = SQLiteStorage.get_logs("project", "faulty")
    losses = [(row["step"], str(row["loss"])) for row in rows]
    connection = sqlite3.connect(HERE / "project.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    for kind, other in connection.execute("SELECT type, name FROM sqlite_master").fetchall():
        if other.startswith("sqlite_"):
            continue
        if kind == "index" or (kind == "table" and other not in KEPT):
            connection.execute(f'DROP {kind.upper()} IF EXISTS "{other}"')
    connection.execute("PRAGMA page_size = 512")
    connection.execute("VACUUM")
    connection.close()
    (HERE / "expected.json").write_text(json.dumps(losses) + "\n")
