"""Make a CUDA build of torch importable without NVIDIA's libraries: `python tools/cuda_stubs.py SITE_PACKAGES`.

A wheel of torch needs some gigabytes of NVIDIA's packages to be imported, though none of their code runs on a CPU.
This writes, beside torch's own libraries, a small library for each missing one. It defines all symbols that torch's
libraries need of it; each is a function that returns 100, CUDA's "no device was found", so `torch.cuda` finds no GPU.
What ran over such stubs is evidence for CPUs alone. It needs readelf, nm and gcc.
"""

import platform
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

OF_NVIDIA = re.compile(r"lib(cu|nv|nccl)\w*\.so")
ELSEWHERE = re.compile(r"_?Py|_ZNK?S|_ZS|_Z[nd]|_ZT[ISV]S|__cxa|__gxx")  # symbols of Python, and of C++'s own library
NO_DEVICE = 100


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(library: Path) -> list[str]:
    """The names of the libraries that one library is linked with."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-dW", library))


def undefined(library: Path) -> set[tuple[str, str]]:
    """Each symbol that a library does not define itself, with its version, or "" where it has none."""
    lines = run("nm", "-D", "--undefined-only", "--with-symbol-versions", library).splitlines()
    symbols = (line.split()[-1] for line in lines if line.split()[0] != "w")
    return {(name, version.lstrip("@")) for name, _, version in (symbol.partition("@") for symbol in symbols)}


def defined(library: Path) -> set[str]:
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines}


def versions_required(library: Path) -> dict[str, set[str]]:
    """For each library that one is linked with, the versions of symbols that it must have."""
    found: dict[str, set[str]] = defaultdict(set)
    of = ""
    for line in run("readelf", "-VW", library).splitlines():
        if name := re.search(r"File: (\S+)", line):
            of = name[1]
        elif version := re.search(r"Name: (\S+)\s+Flags", line):
            found[of].add(version[1])
    return found


def build(path: Path, symbols: dict[str, set[str]]) -> None:
    """Write one stub that defines the symbols of each version; those of version "" have none."""
    names = sorted(set().union(*symbols.values()))
    body = f"mov ${NO_DEVICE}, %eax; ret" if platform.machine() == "x86_64" else f"mov w0, #{NO_DEVICE}; ret"
    text = "".join(f".globl {name}\n.type {name}, %function\n{name}:\n" for name in names)
    script = "".join(
        f"{version} {{ global: {''.join(f'{name}; ' for name in sorted(of))}}};\n"
        for version, of in symbols.items()
        if version
    )
    with TemporaryDirectory() as folder:
        source, versions = Path(folder, "stub.s"), Path(folder, "stub.map")
        source.write_text(f'.section .note.GNU-stack,"",%progbits\n.text\n{text}{body}\n')
        versions.write_text(script)
        options = [f"-Wl,--version-script={versions}"] if script else []
        run("gcc", "-shared", "-nostdlib", f"-Wl,-soname={path.name}", *options, "-o", path, source)


def main(site: Path) -> None:
    folder = site / "torch/lib"
    own = sorted({*folder.glob("*.so*"), *(site / "torch").glob("_C*.so")})
    present = {each.name for each in own}
    names = {name for each in own for name in needed(each) if name not in present and OF_NVIDIA.match(name)}
    missing: dict[str, dict[str, set[str]]] = {name: {"": set()} for name in sorted(names)}
    at_home = set().union(*map(defined, own))
    for library in own:
        here = [name for name in needed(library) if name in missing]
        by_version = {version: name for name, of in versions_required(library).items() for version in of}
        for name, of in versions_required(library).items():
            if name in missing:
                for version in of:
                    missing[name].setdefault(version, set())
        for symbol, version in undefined(library):
            if version in by_version:
                if by_version[version] in missing:
                    missing[by_version[version]][version].add(symbol)
            elif not version and here and symbol not in at_home and not ELSEWHERE.match(symbol):
                missing[here[0]][""].add(symbol)
    for name, symbols in missing.items():
        build(folder / name, symbols)
    print(f"{len(missing)} stubs in {folder}: {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
