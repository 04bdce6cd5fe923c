"""The objects of `deploy/kubernetes`, as `kubectl kustomize` renders them.

    render(KUBERNETES / "overlays/example")    # a list of objects

There is no kustomize on the package registries that the tests use, so this is a small one: `resources`,
`images` and `patches` of JSON 6902 with a target, and an error for any other field.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
INSTALLATIONS = ("base", "overlays/example", "overlays/landlock")

Object = dict[str, Any]


def render(folder: Path) -> list[Object]:
    """All objects of a kustomization.

    Raises:
        ValueError: it has a field that is not known here, or a patch without effect.
    """
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    del kustomization["apiVersion"], kustomization["kind"]
    objects: list[Object] = []
    for name in kustomization.pop("resources"):
        path = folder / name
        objects += render(path) if path.is_dir() else read(path)
    for image in kustomization.pop("images", []):
        for container in (each for one in objects for each in containers(one)):
            repository, _, tag = container["image"].rpartition(":")
            if repository == image["name"]:
                container["image"] = f"{image.get('newName', repository)}:{image.get('newTag', tag)}"
    for patch in kustomization.pop("patches", []):
        target = patch["target"]
        found = [one for one in objects if target == {"kind": one["kind"], "name": one["metadata"]["name"]}]
        if not found:
            raise ValueError(f"{folder}: nothing is the target {target}")
        for one in found:
            for operation in yaml.safe_load(patch["patch"]):
                _apply(one, **operation)
    if kustomization:
        raise ValueError(f"{folder}: {sorted(kustomization)} are not known to this helper")
    return objects


def read(path: Path) -> list[Object]:
    """The objects of one file."""
    return list(yaml.safe_load_all(path.read_text()))


def pod_of(one: Object) -> Object | None:
    """The pod's template (`metadata` and `spec`) of a workload; None for another object."""
    template: Object | None = one.get("spec", {}).get("template")
    return template if template is not None and "spec" in template else None


def containers(one: Object) -> Iterator[Object]:
    """The containers of a workload, those of its start too."""
    pod = pod_of(one) or {"spec": {}}
    yield from (*pod["spec"].get("initContainers", ()), *pod["spec"].get("containers", ()))


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of a kind and a name."""
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def _apply(one: Object, op: str, path: str, value: Any = None) -> None:
    """A JSON 6902 operation: add, replace or remove."""
    *way, last = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:])
    here: Any = one
    for part in way:
        here = here[int(part)] if isinstance(here, list) else here[part]
    if isinstance(here, list):
        if (op, last) != ("add", "-"):
            raise ValueError(f"{op} {path}: of lists only `add` at the end is known to this helper")
        here.append(value)
    elif op == "remove":
        del here[last]
    elif op == "add" or (op == "replace" and last in here):
        here[last] = value
    else:
        raise ValueError(f"{op} {path}: no such operation here")
