"""The conformance suite: what every method must do, for ours and for yours.

    from recollect.testing import check_method

    def test_my_method():
        check_method("my-method")                       # registered, or an entry point
        check_method("my_method.py")                    # a file that defines METHODS; file.py:name for one of several
        check_method(Method(MyLearner, MyConfig(), "")) # or the row itself

Each check raises AssertionError with what was expected. The streams are random pictures of a few pixels; nothing is
downloaded and all checks of a method together take seconds. Options called `memory`, `auxiliary_dim` and the like are
made small; name your own with `small={"exemplars": 6}`, where samples of all memories together may not exceed `budget`.
"""

from recollect.testing.checks import CHECKS, check_method, memory_stays_within_its_budget
from recollect.testing.harness import make_small

__all__ = ["CHECKS", "check_method", "make_small", "memory_stays_within_its_budget"]
