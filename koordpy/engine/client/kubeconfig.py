# SPDX-License-Identifier: Apache-2.0
"""Reads and merges kubeconfig files as kubectl does. Errors name the file and the field.

`credentials.py` turns the merged files into a `ClusterAccess`.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from koordpy.api.field_faults import shown


class CredentialError(Exception):
    """The server or the credentials cannot be determined; the message names the file and the field."""


@dataclass(slots=True)
class KubeconfigSection:
    """One named entry of a kubeconfig (context, cluster or user), with the file that it was read from."""

    fields: Mapping[str, Any]
    file: str
    path: str
    """Path of the entry in the file, for messages: `users[name].user`."""
    folder: Path
    """Folder of the file, to which paths in the entry are relative."""

    def at(self, name: str) -> str:
        """Returns the location of a field, for messages."""
        return f"{self.file}: {self.path}.{name}"

    def text(self, name: str, *, required: bool = False) -> str:
        """Returns a string field; empty if it is absent. Raises CredentialError."""
        value = self.fields.get(name)
        if value is None or value == "":
            if required:
                raise CredentialError(f"{self.at(name)}: missing")
            return ""
        if not isinstance(value, str):
            raise CredentialError(f"{self.at(name)}: must be a string, not {shown(value)}")
        return value

    def resolve(self, path: str) -> Path:
        """Resolves a path, which is relative to the folder of the kubeconfig."""
        return self.folder / os.path.expanduser(path)

    def file_or_data(self, name: str) -> bytes | None:
        """Returns the bytes of NAME-data (base64), else of the file NAME; None if neither is set."""
        if data := self.text(f"{name}-data"):
            try:
                return base64.b64decode(data, validate=True)
            except binascii.Error as error:
                raise CredentialError(f"{self.at(name + '-data')}: invalid base64: {error}") from error
        if path := self.text(name):
            try:
                return self.resolve(path).read_bytes()
            except OSError as error:
                raise CredentialError(f"{self.at(name)}: {path}: {error.strerror or error}") from error
        return None


class Kubeconfig:
    """Kubeconfig files merged as kubectl merges them."""

    def __init__(self) -> None:
        self.current_context = ""
        self.files: list[str] = []
        """Paths of the merged files, in order."""
        # `contexts`, `clusters` or `users` -> name -> entry
        self.sections: dict[str, dict[str, KubeconfigSection]] = {"contexts": {}, "clusters": {}, "users": {}}

    def entry(self, section: str, name: str) -> KubeconfigSection:
        """Returns a named entry of contexts, clusters or users. Raises CredentialError."""
        try:
            return self.sections[section][name]
        except KeyError:
            known = ", ".join(sorted(self.sections[section])) or "none"
            raise CredentialError(
                f"{', '.join(self.files)}: {section}[{name}]: no such entry (known: {known})"
            ) from None

    def as_mapping(self) -> dict[str, Any]:
        """Returns the merged files as one kubeconfig."""

        def entries(section: str, singular: str) -> list[dict[str, Any]]:
            return [{"name": name, singular: dict(s.fields)} for name, s in self.sections[section].items()]

        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.current_context,
            "contexts": entries("contexts", "context"),
            "clusters": entries("clusters", "cluster"),
            "users": entries("users", "user"),
        }


def _on_one_line(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    words = " ".join(str(part) for part in (error.context, error.problem) if part)
    return f"line {mark.line + 1}, column {mark.column + 1}: {words}" if mark is not None else words


def merged(paths: list[Path]) -> Kubeconfig:
    """Merges files: the first file that defines a name wins. Raises CredentialError."""
    config = Kubeconfig()
    for path in paths:
        config.files.append(str(path))
        # read the file as YAML, then add the entries with names that no earlier file defines
        try:
            loaded = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except OSError as error:
            raise CredentialError(f"{path}: kubeconfig cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise CredentialError(f"{path}: kubeconfig cannot be read: not valid UTF-8 ({error.reason})") from error
        except yaml.MarkedYAMLError as error:
            raise CredentialError(f"{path}: kubeconfig is not valid YAML: {_on_one_line(error)}") from error
        except yaml.YAMLError as error:
            raise CredentialError(f"{path}: kubeconfig is not valid YAML: {' '.join(str(error).split())}") from error
        if not isinstance(loaded, dict):
            what = f"this is {shown(loaded)}" if loaded is not None else "the file is empty"
            raise CredentialError(f"{path}: a kubeconfig must be a mapping, {what}")
        current = loaded.get("current-context")
        if current is not None and not isinstance(current, str):
            raise CredentialError(f"{path}: current-context: must be a string, not {shown(current)}")
        config.current_context = config.current_context or current or ""
        for section, singular in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
            entries = loaded.get(section) or []
            if not isinstance(entries, list):
                raise CredentialError(f"{path}: {section}: must be a list, this is {shown(entries)}")
            for index, entry in enumerate(entries):
                if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                    raise CredentialError(f"{path}: {section}[{index}]: needs a name")
                fields = entry.get(singular) or {}
                if not isinstance(fields, dict):
                    what = f"must be a mapping, this is {shown(fields)}"
                    raise CredentialError(f"{path}: {section}[{index}].{singular}: {what}")
                name = entry["name"]
                at = f"{section}[{name}].{singular}"
                config.sections[section].setdefault(
                    name, KubeconfigSection(fields, str(path), at, path.resolve().parent)
                )
    return config
