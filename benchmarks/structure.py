"""How easily the code is walked: its import graph, its sizes, the files that an erasure passes.

python -m benchmarks.structure            # the graph and the sizes: seconds
python -m benchmarks.structure --erase    # a whole simulated erasure too: a minute or two
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import grimp
import networkx

import secede

SOURCE = Path(secede.__file__).parent


def imports() -> networkx.DiGraph:
    """Return the graph of imports between modules, those under TYPE_CHECKING among them."""
    graph = grimp.build_graph("secede", cache_dir=None)
    found = networkx.DiGraph()
    found.add_nodes_from(graph.modules)
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            found.add_edge(module, other)
    return found


def resolved_imports(*, when_loaded: bool = False) -> networkx.DiGraph:
    """Return the graph of imports, each of the module that a name is in.

    A name that a package's `__init__.pyi` lists counts as an import of its module. With
    `when_loaded`, only imports that loading a module runs count: not those inside functions. The
    app that `secede flower init` copies is a user's and no module of ours.
    """
    modules = {_name(path): path for path in SOURCE.rglob("*.py") if "templates" not in path.parts}
    lazy = _lazy_names()
    graph = networkx.DiGraph()
    graph.add_nodes_from(modules)
    for module, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body if when_loaded else ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("secede"):
                for alias in node.names:
                    part = f"{node.module}.{alias.name}"
                    graph.add_edge(module, part if part in modules else lazy.get(part, node.module))
    return graph


def _lazy_names() -> dict[str, str]:
    """Return the modules of all names that packages load when they are first used."""
    names = {}
    for stub in SOURCE.rglob("__init__.pyi"):
        package = _name(stub.with_suffix(".py"))
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                parent = ".".join(package.split(".")[: 1 - node.level or None])
                for alias in node.names:
                    names[f"{package}.{alias.name}"] = f"{parent}.{node.module}"
    return names


def _name(path: Path) -> str:
    parts = ("secede", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def cycles(graph: networkx.DiGraph) -> list[set[str]]:
    """Return the groups of modules that import each other in a circle."""
    return [group for group in networkx.strongly_connected_components(graph) if len(group) > 1]


def modules_by_folder() -> Counter[str]:
    """Return how many modules each folder has, `__init__` left out."""
    files = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
    return Counter(str(path.parent.relative_to(SOURCE)) for path in files)


def lines_by_file() -> Counter[str]:
    """Return how many lines each file has."""
    return Counter(
        {
            str(path.relative_to(SOURCE)): len(path.read_text(encoding="utf-8").splitlines())
            for path in SOURCE.rglob("*.py*")
            if path.suffix in (".py", ".pyi")
        }
    )


def files_of_an_erasure(folder: Path) -> set[str]:
    """Return the files whose functions `secede erase` calls, leaving import time out."""
    command = [sys.executable, "-c", "from secede.cli import main; main()"]
    request = ["request", "site-0", "--home", "home", "--key", "home/sites/site-0.key"]
    for arguments in (
        ["federation", "init", "home", "demo", "--name", "north"],
        [*request, "--trigger", "consent-withdrawn"],
    ):
        subprocess.run([*command, *arguments], check=True, cwd=folder, capture_output=True)
    with contextlib.chdir(folder), _profiled() as files:
        _erase()
    return files


def _erase() -> None:
    from secede import cli

    arguments, sys.argv = sys.argv, ["secede", "erase", "request.json", "--home", "home"]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            cli.main()
    finally:
        sys.argv = arguments


@contextlib.contextmanager
def _profiled() -> Iterator[set[str]]:
    files, importing = set[str](), Counter[int]()
    prefix = str(SOURCE) + os.sep

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event not in ("call", "return"):
            return
        thread = threading.get_ident()
        if frame.f_code.co_name == "<module>":
            importing[thread] += 1 if event == "call" else -1
        elif event == "call" and not importing[thread]:
            file = frame.f_code.co_filename
            if file.startswith(prefix) and file.endswith(".py"):
                files.add(file.removeprefix(prefix))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--erase", action="store_true", help="also follow a whole erasure")
    wanted = parser.parse_args()
    graph, lines = imports(), lines_by_file()
    folders = Counter(
        {name: size for name, size in modules_by_folder().items() if name != "unlearning/methods"}
    )
    chain = networkx.dag_longest_path(resolved_imports(when_loaded=True))
    print(f"modules             {len(graph)}")
    print(f"lines               {lines.total()}")
    print("largest folder      {0[1]} modules: {0[0]}".format(folders.most_common(1)[0]))
    print("longest file        {0[1]} lines: {0[0]}".format(lines.most_common(1)[0]))
    print(f"cycles              {len(cycles(graph))}")
    print(f"longest chain       {len(chain)}: {' > '.join(chain)}")
    print(f"edges per module    {graph.number_of_edges() / len(graph):.2f}")
    followed = resolved_imports()
    print(f"lazy names followed {followed.number_of_edges() / len(followed):.2f}")
    if wanted.erase:
        with tempfile.TemporaryDirectory() as folder:
            files = files_of_an_erasure(Path(folder))
        print(f"files of an erasure {len(files)}")
        for file in sorted(files):
            print(f"  {file}")


if __name__ == "__main__":
    main()
