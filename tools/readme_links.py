"""Hatchling's hook for the README in the package's metadata, which is read where no file of the repository lies beside
it: links and pictures get the address of the repository, at the version's tag.

The address is `Repository` of [project.urls] in pyproject.toml. Without it the README stays as it is.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


class ReadmeLinks(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if address := metadata.get("urls", {}).get("Repository"):
            text = absolute(text, address.rstrip("/"), f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, repository: str, tag: str) -> str:
    """Return the text with links to pages at the tag, and pictures from there; as GitHub and GitLab have them."""

    def spelled(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/{tag}/{target})"

    return LINK.sub(spelled, text)
