"""Copies the files that a program needs at run time into an empty root folder.

Runs inside the build stage of the Dockerfiles beside it. What it leaves out is the point: no shell, no package
manager and no build tool reaches the final image. It follows shared libraries with `ldd` and fails when one cannot be
found, because an image that does not start is worse than a build that stops.

    trim.py --into /rootfs --python --tree /opt/weft
    trim.py --into /rootfs --program /usr/bin/redis-server
"""

import argparse
import compileall
import os
import py_compile
import shutil
import stat
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

# Parts of the standard library that a server has no use for: test suites, a GUI, an editor, an installer.
LEFT_OUT = {
    "__pycache__",
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "dist-packages",
}
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
USER_ID = 65532
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\nweft:x:{USER_ID}:{USER_ID}:weft:/tmp:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nweft:x:{USER_ID}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def is_elf(path: Path) -> bool:
    """Tell whether a plain file is a program or a shared library."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def shared_libraries(files: list[Path]) -> set[Path]:
    """Return every shared library that the ELF files need, and the loader; raise SystemExit when one is missing."""
    found: set[Path] = set()
    if not files:
        return found
    # A statically linked program makes ldd exit with 1 and "not a dynamic executable"; it needs nothing.
    answer = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    for line in answer.splitlines():
        words = line.split()
        if "not found" in line:
            raise SystemExit(f"trim: a shared library is missing in the build stage: {line.strip()}")
        if "=>" in words and words[-2].startswith("/"):
            found.add(Path(words[-2]))
        elif len(words) == 2 and words[0].startswith("/"):
            found.add(Path(words[0]))
    # Loaded by name when a thread is cancelled or an exception unwinds, so ldd does not see it.
    for library in list(found):
        unwinder = library.with_name("libgcc_s.so.1")
        if library.name == "libc.so.6" and unwinder.exists():
            found.add(unwinder)
    return found


def place(root: Path, source: Path) -> Path:
    """Return where a file belongs under the new root, with links in its folder's path resolved."""
    return root / (Path(os.path.realpath(source.parent)) / source.name).relative_to("/")


def copy_file(root: Path, source: Path) -> None:
    """Copy one file, following links, to the same path under the new root."""
    target = place(root, source)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(stat.S_IMODE(source.stat().st_mode))


def copy_tree(root: Path, source: Path, *, left_out: set[str]) -> None:
    """Copy a folder, keeping links as links; `left_out` names files and folders, by the end of their path."""

    def unwanted(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if any(f"{folder}/{name}".endswith(f"/{ending}") for ending in left_out)]

    shutil.copytree(source, place(root, source), symlinks=True, ignore=unwanted, dirs_exist_ok=True)


def drop_symbols(path: Path) -> None:
    """Rewrite a 64-bit shared library with its loaded segments alone, without sections for linkers and debuggers.

    The loader reads program headers alone, and those say where in the file each segment lies. Of some libraries nine
    tenths are symbols.
    """
    old = path.read_bytes()
    if old[4:6] != b"\x02\x01":  # 64 bits, little-endian
        return
    (table,) = struct.unpack_from("<Q", old, 32)
    size, count = struct.unpack_from("<HH", old, 54)
    headers = [table + size * number for number in range(count)]
    # Each as (offset in the file, length there, alignment), in the order in which they lie there.
    loaded = sorted(
        struct.unpack_from("<Q16xQ8xQ", old, at + 8) for at in headers if struct.unpack_from("<I", old, at)[0] == 1
    )
    if not loaded or loaded[0][0] != 0 or not any(start <= table < start + length for start, length, _ in loaded):
        return  # the headers themselves would be lost
    new, moved = bytearray(), []
    for offset, length, alignment in loaded:
        new += bytes((offset - len(new)) % max(alignment, 1))
        moved.append((offset, offset + length, len(new) - offset))
        new += old[offset : offset + length]

    def place_of(offset: int) -> int:
        """Return where a byte of the old file is now; one that is not loaded stays what it is."""
        return offset + next((by for start, end, by in moved if start <= offset < end), 0)

    for at in headers:
        (offset,) = struct.unpack_from("<Q", old, at + 8)
        struct.pack_into("<Q", new, place_of(at) + 8, place_of(offset))
    struct.pack_into("<QQ", new, 32, place_of(table), 0)  # no section headers
    struct.pack_into("<HHH", new, 58, 0, 0, 0)
    path.write_bytes(new)


def copy_interpreter(root: Path) -> list[Path]:
    """Copy the interpreter and its standard library; return the ELF files among them."""
    interpreter = Path(os.path.realpath(sys.executable))
    copy_file(root, interpreter)
    # A virtual environment points at python3, which is a link beside the interpreter.
    link = interpreter.with_name("python3")
    if link.is_symlink():
        place(root, link).symlink_to(interpreter.name)
    library = Path(sysconfig.get_paths()["stdlib"])
    # The folder of link-time files is called config-3.11-x86_64-linux-gnu or the like.
    link_time = {path.name for path in library.glob("config-*")}
    copy_tree(root, library, left_out=LEFT_OUT | link_time)
    return [
        interpreter,
        *(path for path in library.rglob("*.so*") if not LEFT_OUT.intersection(path.parts) and is_elf(path)),
    ]


def lay_base(root: Path) -> None:
    """Make the folders, accounts and certificates that every image has."""
    root.mkdir(parents=True, exist_ok=True)
    # A merged /usr: ld.so is asked for as /lib64/…, the file lies in /usr/lib64.
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            (root / "usr" / name).mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(f"usr/{name}")
    for name, text in ACCOUNTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for source in (CA_BUNDLE, Path("/etc/os-release")):
        if source.exists():
            copy_file(root, source)
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)


def write_loader_cache(root: Path, libraries: set[Path]) -> None:
    """Tell the loader where the libraries lie, also those outside its default folders."""
    folders = sorted({os.path.realpath(path.parent) for path in libraries})
    (root / "etc" / "ld.so.conf").write_text("".join(f"{folder}\n" for folder in folders))
    subprocess.run(["ldconfig", "-r", str(root)], check=True)


def compile_sources(root: Path) -> None:
    """Write bytecode now: the image is read-only at run time, and compiling at every start costs seconds."""
    # Unchecked hashes instead of time stamps, so that two builds of one source give the same bytes.
    done = compileall.compile_dir(
        root, quiet=1, stripdir=str(root), workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    if not done:
        raise SystemExit("trim: some sources do not compile; see the messages above")


def main() -> None:
    """Read the arguments and fill the new root."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="the new root folder")
    parser.add_argument("--python", action="store_true", help="copy the interpreter and its standard library")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="a folder to copy whole")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        help="leave this out of the trees: the end of a path, such as pkg/part",
    )
    parser.add_argument("--program", type=Path, action="append", default=[], help="a program to copy")
    options = parser.parse_args()
    root: Path = options.into
    lay_base(root)
    binaries: list[Path] = []
    if options.python:
        binaries += copy_interpreter(root)
    for tree in options.tree:
        copy_tree(root, tree, left_out={"__pycache__", *options.without})
        binaries += [path for path in tree.rglob("*") if is_elf(path)]
        for library in place(root, tree).rglob("*.so*"):
            if is_elf(library):
                drop_symbols(library)
    for program in options.program:
        copy_file(root, program)
        binaries.append(program)
    libraries = shared_libraries(binaries)
    for library in libraries:
        if not any(library.is_relative_to(tree) for tree in options.tree):
            copy_file(root, library)
    write_loader_cache(root, libraries)
    if options.python:
        compile_sources(root)


if __name__ == "__main__":
    main()
