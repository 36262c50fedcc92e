"""The error of a classifier that has learned nothing yet; apart, because it imports scikit-learn."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError

from recollect.errors import UserError


class NotLearnedError(UserError, NotFittedError):  # type: ignore[misc]  # scikit-learn has no types
    """Nothing has been learned; also an AttributeError, so that `hasattr(model, "classes_")` is false."""
