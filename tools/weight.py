"""Weigh a checkout: tokens, files, long lines, docstrings, imports, repeated class names, long sentences.

    python tools/weight.py [ROOT] [--json]
    python tools/weight.py [ROOT] --lower    # compares with weights.toml; lowers what is lighter now, names what is not

Python is weighed in `src` and in `tests`. A token is what `tokenize` gives, without comments and without what only
lays text out (line ends, indents, encoding). An import is a module of our own that another one names, wherever in the
file it does so.

Sentences are those of README.md and of the Markdown files in docs. Code blocks do not count. A heading, a list item
and a table's cell each stand alone; the lines of a paragraph are joined. A sentence ends at `.`, `!` or `?` before a
space, or where its block ends. Inline code is one word, a link is its text, and a word has a letter or a digit in it.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.ENCODING,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_STRINGS = {"begin": {"FSTRING_START", "TSTRING_START"}, "end": {"FSTRING_END", "TSTRING_END"}}
SHORT_FILE_LINES = 50
LONG_SENTENCE_WORDS = 30
WIDE = 8  # attributes of one parameter that a module may read
_FENCE = re.compile(r"\s*(```|~~~)")
_BLOCK = re.compile(r"\s*(#+|[-*+]|\d+\.|>)\s+")
_RULE = re.compile(r"[\s|:-]+")
_END = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+")
_DIRECTIVE = re.compile(r"^:::.*\n(?: {4}.*\n)*", re.MULTILINE)  # of mkdocstrings


@dataclass
class Weight:
    """The figures of one folder of Python files."""

    tokens: int = 0
    files: int = 0
    files_under_50_lines: int = 0
    lines: int = 0
    lines_over_110: int = 0
    lines_over_120: int = 0
    functions: int = 0
    docstring_lines: int = 0
    docstring_lines_per_function: float = 0.0
    imports_mean: float = 0.0
    imports_max: int = 0
    imports_most: str = ""  # the module that imports most
    class_names_repeated: dict[str, int] = field(default_factory=dict)


@dataclass
class Sentences:
    """The figures of README and docs."""

    words: int = 0
    sentences: int = 0
    over_30_words: int = 0
    longest: list[str] = field(default_factory=list)


def tokens(text: str) -> int:
    """Tokens of a module without comments and layout. An f-string is one, as before Python 3.12."""
    count = depth = 0
    for each in tokenize.generate_tokens(io.StringIO(text).readline):
        begins, ends = (tokenize.tok_name[each.type] in _STRINGS[kind] for kind in ("begin", "end"))
        depth -= ends
        count += not depth and not ends and each.type not in LAYOUT
        depth += begins
    return count


def docstrings(tree: ast.Module) -> tuple[int, int]:
    """How many functions a module has, and how many lines their docstrings have in all."""
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return len(functions), sum(len((ast.get_docstring(each) or "").splitlines()) for each in functions)


def imported(tree: ast.Module, file: str, modules: set[str]) -> set[str]:
    """The modules of our own that `file` imports; all are named by path: `store/disk.py` is `store.disk`."""
    found = set()
    package = Path(file).parts[:-1]
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            names = [alias.name.split(".") for alias in each.names]
        elif isinstance(each, ast.ImportFrom):
            up = package[: len(package) - each.level + 1] if each.level else ()
            base = [*up, *(each.module.split(".") if each.module else [])]
            names = [[*base, alias.name] for alias in each.names]
        else:
            continue
        for name in names:
            words = name[1:] if name[:1] == ["holdfast"] else name if getattr(each, "level", 0) else []
            own = [".".join(words[:end]) for end in (len(words), len(words) - 1) if end > 0]
            found |= set([each for each in own if each in modules][:1])
    return found


def weigh(folder: Path) -> Weight:
    """All figures of the Python files below `folder`."""
    texts = {each.relative_to(folder).as_posix(): each.read_text() for each in sorted(folder.rglob("*.py"))}
    names = {file: file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in texts}
    modules = set(names.values())
    weight, classes, imports = Weight(), Counter[str](), {}
    for file, text in texts.items():
        tree, lines = ast.parse(text), text.splitlines()
        functions, documented = docstrings(tree)
        weight.files += 1
        weight.tokens += tokens(text)
        weight.lines += len(lines)
        weight.lines_over_110 += sum(len(each) > 110 for each in lines)
        weight.lines_over_120 += sum(len(each) > 120 for each in lines)
        weight.files_under_50_lines += len(lines) < SHORT_FILE_LINES
        weight.functions += functions
        weight.docstring_lines += documented
        classes.update(each.name for each in ast.walk(tree) if isinstance(each, ast.ClassDef))
        imports[file] = len(imported(tree, file, modules) - {names[file]})
    weight.docstring_lines_per_function = round(weight.docstring_lines / max(weight.functions, 1), 3)
    if any(imports.values()):
        weight.imports_mean = round(mean(imports.values()), 2)
        weight.imports_most = max(imports, key=lambda file: imports[file])
        weight.imports_max = imports[weight.imports_most]
    weight.class_names_repeated = {name: count for name, count in sorted(classes.items()) if count > 1}
    return weight


def circles(texts: dict[str, str]) -> list[frozenset[str]]:
    """The groups of modules that import each other, also for types or inside a function; the largest first."""
    names = {file: file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in texts}
    modules = {*names.values()}
    graph = {names[file]: imported(ast.parse(text), file, modules) for file, text in texts.items()}
    reached = {name: _reached(graph, name) for name in graph}
    found = {frozenset(each for each in reached[name] if name in reached[each]) for name in graph}
    return sorted((each for each in found if len(each) > 1), key=len, reverse=True)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found, ahead = set[str](), [start]
    while ahead:
        new = graph[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def wide_parameters(tree: ast.Module) -> set[str]:
    """The parameters, by their names, of which a module reads more than eight attributes."""
    read = defaultdict(set)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            given = {each.arg for each in [*function.args.args, *function.args.kwonlyargs]} - {"self", "cls"}
            for each in ast.walk(function):
                if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id in given:
                    read[each.value.id].add(each.attr)
    return {name for name, attributes in read.items() if len(attributes) > WIDE}


def bounded(root: Path) -> dict[str, dict[str, int]]:
    """The figures that weights.toml bounds: tokens of each package of src and of all tests, and the shape of src."""
    source = root / "src/holdfast"
    texts = {each.relative_to(source).as_posix(): each.read_text() for each in sorted(source.rglob("*.py"))}
    packages = Counter[str]()
    for file, text in texts.items():
        packages[file.split("/")[0].removesuffix(".py")] += tokens(text)
    trees = {file: ast.parse(text) for file, text in texts.items()}
    classes = Counter(each.name for tree in trees.values() for each in ast.walk(tree) if isinstance(each, ast.ClassDef))
    found = circles(texts)
    return {
        "tokens": {"src": packages.total(), "tests": sum(map(_tokens, (root / "tests").rglob("*.py")))},
        "packages": dict(sorted(packages.items())),
        "shape": {
            "import_circles": len(found),
            "modules_in_the_largest_circle": max(map(len, found), default=0),
            "class_names_repeated": sum(count > 1 for count in classes.values()),
            "wide_parameters": sum(len(wide_parameters(tree)) for tree in trees.values()),
        },
    }


def _tokens(path: Path) -> int:
    return tokens(path.read_text())


def too_heavy(root: Path, found: dict[str, dict[str, int]] | None = None) -> list[str]:
    """A line for each figure, of those that `bounded` found, that is above its bound in weights.toml, or has none."""
    bounds, lines = tomllib.loads((root / "weights.toml").read_text()), []
    for table, figures in (found or bounded(root)).items():
        for name, figure in figures.items():
            bound = bounds[table].get(name)
            if bound is None:
                lines.append(f"weights.toml has no {table}.{name}: it is {figure}")
            elif figure > bound:
                lines.append(f"weights.toml: {table}.{name} is {figure}, and may be {bound}")
    return lines


def lower(root: Path, found: dict[str, dict[str, int]] | None = None) -> list[str]:
    """Lower each bound in weights.toml to the figure that is there now; return a line for each that changed."""
    file = root / "weights.toml"
    figures, lines, table, kept = found or bounded(root), [], "", []
    for line in file.read_text().splitlines(keepends=True):
        if header := re.match(r"\[(\w+)\]", line):
            table = header[1]
        if bound := re.match(r"(\w+) = (\d+)$", line.rstrip()):
            figure = figures[table].get(bound[1])
            if figure is None or figure < int(bound[2]):
                lines.append(f"weights.toml: {table}.{bound[1]} {bound[2]} -> {'gone' if figure is None else figure}")
                if figure is None:
                    continue
                line = f"{bound[1]} = {figure}\n"  # noqa: PLW2901
        kept.append(line)
    if lines:
        file.write_text("".join(kept))
    return lines


def blocks(markdown: str) -> Iterator[str]:
    """What stands alone in a Markdown text: a paragraph, a heading, a list item, a table's cell."""
    paragraph: list[str] = []
    fenced = listed = False
    for line in [*_DIRECTIVE.sub("", markdown).splitlines(), ""]:
        if _FENCE.match(line):
            fenced = not fenced
        begins = _BLOCK.match(line)
        indented = line.startswith(("    ", "\t")) and not begins and not listed and not paragraph
        ends = not line.strip() or begins or line.lstrip().startswith("|") or _FENCE.match(line)
        if (ends or fenced) and paragraph:
            yield " ".join(paragraph)
            paragraph = []
        if fenced or indented or _FENCE.match(line) or not line.strip() or _RULE.fullmatch(line):
            continue
        listed = bool(begins and not begins[1].startswith(("#", ">"))) or (listed and line.startswith(" "))
        if line.lstrip().startswith("|"):
            yield from (cell for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")) if cell.strip())
        else:
            paragraph.append(line[begins.end() :] if begins else line.strip())
            if begins and begins[1].startswith("#"):
                yield paragraph.pop()


def sentences(markdown: str) -> Iterator[str]:
    """The sentences of a Markdown text."""
    for block in blocks(markdown):
        plain = re.sub(r"`[^`]*`", "CODE", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block))
        yield from (each for each in _END.split(plain) if words(each))


def words(sentence: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def read(root: Path) -> Sentences:
    """The figures of README.md and docs of a checkout."""
    result, lengths = Sentences(), defaultdict(list)
    files = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    for each in (file for file in files if file.exists()):
        for sentence in sentences(each.read_text()):
            count = words(sentence)
            result.words += count
            result.sentences += 1
            result.over_30_words += count > LONG_SENTENCE_WORDS
            lengths[count].append(f"{each.relative_to(root)}: {sentence}")
    result.longest = [f"{count} words, {text}" for count in sorted(lengths, reverse=True) for text in lengths[count]][
        :5
    ]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true", help="print JSON, with the names behind the counts")
    parser.add_argument("--lower", action="store_true", help="lower the bounds in weights.toml to what is there now")
    asked = parser.parse_args()
    if not (asked.root / "src/holdfast").is_dir():
        parser.error(f"{asked.root} has no src/holdfast: give the root of a checkout")
    if asked.lower:
        figures = bounded(asked.root)
        above = too_heavy(asked.root, figures)
        print("\n".join([*lower(asked.root, figures), *above] or ["weights.toml: nothing is lighter, nothing heavier"]))
        return min(len(above), 1)
    weights = {name: weigh(asked.root / path) for name, path in (("src", "src/holdfast"), ("tests", "tests"))}
    text = read(asked.root)
    if asked.json:
        print(json.dumps({**{name: asdict(each) for name, each in weights.items()}, "text": asdict(text)}, indent=1))
        return 0
    for name, weight in weights.items():
        facts = asdict(weight) | {"class_names_repeated": len(weight.class_names_repeated)}
        for key, value in facts.items():
            print(f"{name:6} {key.replace('_', ' '):32} {value}")
    for key, value in asdict(text).items():
        if key != "longest":
            print(f"{'text':6} {key.replace('_', ' '):32} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
