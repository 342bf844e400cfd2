"""What the packages of fsspec call by names of their own."""

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from holdfast.mirror.other import FsspecPlace, _exclusive_option
from holdfast.mirror.place import Refused


class LikeNew(MemoryFileSystem):  # fsspec's own since 2024.10
    async def _pipe_file(self, path, value, mode="overwrite", **kwargs):
        raise NotImplementedError


class LikeAdlfs(MemoryFileSystem):
    async def _pipe_file(self, path, value, overwrite=True, max_concurrency=None, **kwargs):
        raise NotImplementedError


class LikeOld(MemoryFileSystem):
    async def _pipe_file(self, path, value, **kwargs):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("kind", "option"), [(LikeNew, {"mode": "create"}), (LikeAdlfs, {"overwrite": False}), (LikeOld, {})]
)
def test_an_exclusive_write_is_asked_for_as_the_package_calls_it(kind, option):
    assert _exclusive_option(kind) == option


class HttpResponseError(Exception):
    status_code = 403


def test_a_refusal_is_told_as_one():
    """gcsfs has no number for it, and adlfs hides it below another error."""
    place = FsspecPlace("memory://box/run")
    hidden = RuntimeError("Failed to remove")
    hidden.__cause__ = HttpResponseError("AuthorizationPermissionMismatch")
    for error in (OSError("Forbidden: b/box\nno storage.objects.create"), hidden, HttpResponseError("no")):
        found = place.translate_error(error)
        assert isinstance(found, Refused), error
        assert "check the URL" in str(found)
    azure = HttpResponseError("This is not authorized.\nRequestId:1\nTime:2\nContent: <?xml?>")
    assert str(place.translate_error(azure)).startswith("memory://box/run: This is not authorized.; check")
