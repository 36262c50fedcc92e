"""A model as a local web page and a JSON interface: `recollect serve`."""

from recollect.errors import UserError

__all__ = ["require_packages"]


def require_packages() -> None:
    """Refuse to start without the packages of the extra `serve`."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError("recollect serve needs Starlette and uvicorn: pip install 'recollect-rfe[serve]'") from error
