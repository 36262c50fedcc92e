"""docs/results.md, and the table of README.md between its two markers."""

from __future__ import annotations

from pages import claims, comparisons, costs, studies
from pages.experiments import EXEMPLARS, ROOT, main_experiment
from pages.markdown import fill, require, table
from pages.unknown import readme_values
from recollect.report.query import get_variant, mean_accuracy
from recollect.report.stats import spread

PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
BEGIN, END = "<!-- results: made by `make results` -->", "<!-- end of results -->"
README_METHODS = {"joint": 0, "rfe-plus": 0, "rfe-p": EXEMPLARS, "rfe": 0, "er-mkd": EXEMPLARS, "derpp": EXEMPLARS,
                  "tamil": EXEMPLARS, "er": EXEMPLARS, "lwf": 0, "finetune": 0}  # fmt: skip
METRICS = (("til", "average_accuracy"), ("til", "forgetting"), ("cil", "average_accuracy"))


def page() -> str:
    """The whole of docs/results.md."""
    return fill("results.md", claims.values() | comparisons.values() | costs.values() | studies.values())


def readme() -> str:
    """README.md with its table recreated."""
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{_readme_part()}{END}{rest.split(END)[1]}"


def _readme_part() -> str:
    main = main_experiment()
    variants = [get_variant(main, method, memory) for method, memory in README_METHODS.items()]
    rows = []
    for v in sorted(variants, key=lambda v: -mean_accuracy(v, "til")):
        counts = v.results[0]["parameters"]
        rows.append([
            f"`{v.method}`", "all" if v.method == "joint" else str(v.memory),
            *(spread(v.values(*metric)) for metric in METRICS),
            f"{counts['training'] / 1e6:.2f} / {counts['inference'] / 1e6:.2f}",
        ])  # fmt: skip
    (num_seeds,) = {len(v.seeds) for v in variants}
    head = ["method", "images kept", "accuracy, task known", "forgetting, task known", "accuracy, task unknown",
            "parameters (millions), training / inference"]  # fmt: skip
    replay = [v for v in main.variants if v.memory and v.options.get("units") == "task" and len(v.seeds) == num_seeds]
    best = max(replay, key=lambda v: mean_accuracy(v, "til"))
    require(
        mean_accuracy(best, "til") < mean_accuracy(get_variant(main, "rfe-plus"), "til"), "rfe-plus is above replay"
    )
    stream, backbone, training = (main.settings[section] for section in ("stream", "backbone", "training"))
    return fill("readme.md", {
        "train_per_class": str(stream["train_per_class"]), "width": str(backbone["width"]),
        "epochs": str(training["epochs"]), "num_seeds": str(num_seeds), "table": table(head, rows),
        "single_head": f"`{best.method}` with {best.memory} images, has {spread(best.values('til', 'average_accuracy'))} (task known)",
        **readme_values(),
    })  # fmt: skip
