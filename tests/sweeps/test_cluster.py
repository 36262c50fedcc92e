"""A sweep on a local Ray cluster of two workers, one of which is killed: nothing lost, nothing run twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.errors import UserError
from recollect.sweeps import in_process, load_preset, plan, sweep
from tests.sweeps.small import PRESET, RUN_OPTIONS, events

ray = pytest.importorskip("ray", reason="ray is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own parts, some of which leave files open


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    from recollect.sweeps.cluster import on_ray

    preset = tmp_path / "small.toml"
    preset.write_text(PRESET.replace("epochs = 1\n", "epochs = 3\n", 1).replace('per_class" = 5', 'per_class" = 40'))
    jobs = load_preset(str(preset)).jobs(seeds=[0], precision="fp32")
    out = tmp_path / "out"
    killed: list[int] = []

    def kill_one() -> None:
        while not killed:
            for log in out.rglob("events.jsonl"):
                lock = log.with_name("lock")
                if events(log.parent, "epoch") and not log.with_name("result.json").exists():
                    killed.append(int(lock.read_text()))
                    os.kill(killed[0], signal.SIGKILL)
                    return
            time.sleep(0.02)

    killer = threading.Thread(target=kill_one)
    killer.start()
    statuses = plan(jobs, out, device="cpu")
    options = RUN_OPTIONS | {"checkpoint_seconds": 0.0}
    sweep(statuses, out, engine=on_ray(None, 1.0, 0.0), **options)
    killer.join()
    assert len(killed) == 1
    assert [status.state for status in statuses] == ["done"] * 4, [status.reasons for status in statuses]
    assert len(events(out, "finished")) == 4
    assert len(events(out, "resumed")) == 1
    alone = plan(jobs, tmp_path / "alone", device="cpu")
    sweep(alone, tmp_path / "alone", engine=in_process, **RUN_OPTIONS)
    for one, other in zip(statuses, alone, strict=True):
        assert one.result is not None
        assert other.result is not None
        assert (one.result["til"], one.result["cil"]) == (other.result["til"], other.result["cil"])


@pytest.mark.usefixtures("cluster")
def test_more_than_the_cluster_has_is_refused(tmp_path: Path) -> None:
    from recollect.sweeps.cluster import on_ray

    statuses = plan(load_preset("cpu/digits").jobs(precision="fp32"), tmp_path, device="cpu")
    with pytest.raises(
        UserError, match="no machine with {'CPU': 1.0, 'GPU': 8.0}; lower --cpus-per-run or --gpus-per-run"
    ):
        sweep(statuses, tmp_path, engine=on_ray(None, 1.0, 8.0), **RUN_OPTIONS)
