#!/usr/bin/env python3
"""Puts faults into the host layer of the Metal backend, one at a time, and sees whether test_metal_apple notices.

  faults.py BUILD [WORD]   BUILD: the build folder, with test_metal_apple built; WORD: only faults whose name contains it.
                           A minute and a half on two cores
  faults.py --check        only whether the text that each fault changes is there
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
APPLE = ROOT / "src/backends/metal/apple"
# (name, file, what stands there, what becomes of it)
FAULTS = [
    ("no endEncoding", "metal_device.cc", "  encoder->endEncoding();", ""),
    ("no commit", "metal_device.cc", "  commands->commit();", ""),
    ("commit twice", "metal_device.cc", "  commands->commit();", "  commands->commit();\n  commands->commit();"),
    ("no event signaled", "metal_device.cc", "  commands->encodeSignalEvent(parts_->event.get(), ++parts_->last_value);", "  ++parts_->last_value;"),
    ("no pool around a list", "metal_device.cc", "bool timed) {\n  const Pool pool;", "bool timed) {"),
    ("times of the list before", "metal_device.cc", "  parts_->times.clear();", ""),
    ("overlap counted twice", "metal_device.cc", "std::max(time.begin - origin, end)", "time.begin - origin"),
    ("timed dispatches without their region", "metal_device.cc", "region->end <= n) ++region;", "region->end < n) ++region;"),
    ("last group left open", "encode.cc", "  if (inside) encoder->popDebugGroup();\n}", "}"),
    ("group left open", "encode.cc", "      if (inside) encoder->popDebugGroup();\n      inside = false;", "      inside = false;"),
    ("groups of nothing", "encode.cc", "region->end <= n) {", "region->end < n) {"),
    ("names that nobody looks at", "encode.cc", "const auto end = named ? list.regions.end() : region;", "const auto end = list.regions.end();"),
    ("command buffer released too often", "metal_device.cc", "Ref<MTLCommandBuffer>::shared(commands)", "Ref<MTLCommandBuffer>::owned(commands)"),
    ("buffer leaked", "metal_device.cc", "auto buffer = Ref<MTLBuffer>::owned(made);", "auto buffer = Ref<MTLBuffer>::shared(made);"),
    ("wrapped buffer leaked", "metal_device.cc", "std::make_unique<MetalBuffer>(parts_->memory, Ref<MTLBuffer>::owned(made)", "std::make_unique<MetalBuffer>(parts_->memory, Ref<MTLBuffer>::shared(made)"),
    ("buffer stays in the residency set", "metal_device.cc", "  residency->removeAllocation(buffer);", ""),
    ("residency set keeps what was removed", "metal_device.cc", "  residency->removeAllocation(buffer);\n  residency->commit();", "  residency->removeAllocation(buffer);"),
    ("residency set not committed", "metal_device.cc", "    memory.residency->commit();", ""),
    ("used memory never less", "metal_device.cc", "  used -= size;", "  (void)size;"),
    ("working set not looked at", "metal_device.cc", "  if (info.working_set && size", "  if (false && size"),
    ("wrap of parts of pages", "metal_device.cc", "first & ~(page - 1)", "first"),
    ("too many lists at once", "metal_device.cc", "kMaxPending = 32", "kMaxPending = 80"),
    ("errors of lists not looked at", "metal_device.cc", "if (status == MTLCommandBufferStatusCompleted) {", "if (status >= MTLCommandBufferStatusCompleted) {"),
    ("no deadline", "metal_device.cc", "if (left <= milliseconds(0)) {", "if (left <= milliseconds(-1000000)) {"),
    ("a deadline for each list", "metal_device.cc", "  if (hung) pending.clear();", ""),
    ("discrete memory taken", "metal_device.cc", "if (!device->hasUnifiedMemory())", "if (false)"),
    ("buffer index off by one", "encode.cc", "encoder->setBuffer(wanted.buffer, wanted.offset, bound.index);", "encoder->setBuffer(wanted.buffer, wanted.offset, bound.index + 1);"),
    ("no barrier", "encode.cc", "      encoder->memoryBarrierWithScope(MTLBarrierScopeBuffers);", ""),
    ("length not a multiple of 16", "encode.cc", "encoder->setThreadgroupMemoryLength(length, i)", "encoder->setThreadgroupMemoryLength(length - 4, i)"),
    ("length not checked", "encode.cc", "if (bytes % 16)", "if (false)"),
    ("offset inside the page forgotten", "encode.cc", "buffer.offset() + bound.offset, nullptr}", "bound.offset, nullptr}"),
    ("value taken for unchanged", "encode.cc", "      slot = wanted;", "      slot.buffer = wanted.buffer, slot.offset = wanted.offset;"),
    ("buffer taken for unchanged", "encode.cc", "slot.buffer == wanted.buffer && slot.offset == wanted.offset", "slot.buffer == wanted.buffer"),
    ("pipeline set once only", "encode.cc", "if (pipeline != current)", "if (!current)"),
    ("grid and threads swapped", "encode.cc", "MTLSize{dispatch.grid.x, dispatch.grid.y, dispatch.grid.z}", "MTLSize{dispatch.grid.y, dispatch.grid.x, dispatch.grid.z}"),
    ("read-only memory may be written", "encode.cc", "if (p.written && !buffer.writable())", "if (false)"),
    ("threads of the pipeline not looked at", "encode.cc", "if (threads > pipeline.most_threads)", "if (false)"),
    ("static threadgroup memory forgotten", "encode.cc", "uint64_t used = pipeline.static_threadgroup_bytes;", "uint64_t used = 0;"),
    ("SIMD width not looked at", "pipelines.cc", "width != kSimdWidth", "width == 0"),
    ("language version not set", "pipelines.cc", "  options->setLanguageVersion(MTLLanguageVersion3_1);", ""),
    ("constant of the wrong type", "pipelines.cc", "return MTLDataTypeBool;", "return MTLDataTypeFloat;"),
    ("constants not in the key", "pipelines.cc", "    key += std::visit(", "    std::visit("),
    ("function leaked", "pipelines.cc", "Ref<MTLFunction>::owned(", "Ref<MTLFunction>::shared("),
    ("library released too often", "pipelines.cc", "  counts_.libraries_compiled++;", "  counts_.libraries_compiled++;\n  made->release();"),
    ("archive not looked in", "pipelines.cc", "  if (archive_) made->state = state(MTLPipelineOptionFailOnBinaryArchiveMiss);", ""),
    ("archive written though nothing is new", "pipelines.cc", "archive_ && !archived &&", "archive_ &&"),
    ("archive alone looked in", "pipelines.cc", "  if (!archived) made->state", "  if (!archive_) made->state"),
    ("archive in its last place at once", "pipelines.cc", 'options_.archive + ".new"', "options_.archive"),
]


class Build:
    def __init__(self, folder):
        self.folder = folder
        self.compile = {pathlib.Path(c["file"]).name: c for c in json.loads((folder / "compile_commands.json").read_text())
                        if pathlib.Path(c["file"]).parent == APPLE}
        lines = subprocess.run(["ninja", "-C", folder, "-t", "commands", "test_metal_apple"], capture_output=True, text=True, check=True)
        self.link = lines.stdout.strip().split("\n")[-1]

    def run(self, fault, work):
        """None when the text is not there, else (noticed, what said so)."""
        name, file, of, to = fault
        text = (APPLE / file).read_text()
        if text.count(of) != 1:
            return None
        source, made, program = (work / n for n in ("fault.cc", "fault.o", "test"))
        source.write_text(text.replace(of, to))
        command = shlex.split(self.compile[file]["command"])
        command[command.index("-o") + 1] = str(made)
        command = ["-O0" if word == "-O3" else str(source) if word == str(APPLE / file) else word for word in command]
        built = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if built.returncode:
            return False, "does not compile: " + built.stderr.split("\n")[0]
        # Before the library, which then has nothing to give in its place.
        link = re.sub(r"-o (\S*test_metal_apple)\b", lambda m: f"{made} -o {program}", self.link, count=1)
        built = subprocess.run(link, shell=True, cwd=self.folder, capture_output=True, text=True)
        if built.returncode:
            return False, "does not link: " + built.stderr.strip().split("\n")[-1]
        try:
            ran = subprocess.run([program, "--gtest_brief=1", "--gtest_fail_fast"], capture_output=True, text=True, timeout=30)
        except subprocess.TimeoutExpired:
            return True, "the test does not end"
        if ran.returncode == 0:
            return False, ""
        if ran.returncode < 0:
            return True, f"the test ends with signal {-ran.returncode}"
        failed = re.findall(r"FAILED  \] (\S+)", ran.stdout)
        said = re.search(r"fake::(?:complaints|live_objects)\(\)\s*Which is: \{([^\n]*)\}", ran.stdout)
        what = said[1][:110] if said else (re.search(r"Which is: ([^\n]*)", ran.stdout) or re.search(r"Failure\n([^\n]*)", ran.stdout) or [0, "?"])[1][:110]
        return True, f"{failed[0].split(',')[0] if failed else '?'}: {what.strip()}"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if sys.argv[1] == "--check":
        gone = [name for name, file, of, _ in FAULTS if (APPLE / file).read_text().count(of) != 1]
        sys.exit(f"the text of a fault is not there once: {', '.join(gone)}" if gone else None)
    build = Build(pathlib.Path(sys.argv[1]).resolve())
    faults = [f for f in FAULTS if len(sys.argv) == 2 or sys.argv[2] in f[0]]

    def one(fault):
        with tempfile.TemporaryDirectory() as work:
            return build.run(fault, pathlib.Path(work))

    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for fault, result in zip(faults, pool.map(one, faults)):
            good = result is not None and result[0]
            wrong += not good
            print(f"{'noticed' if good else 'MISSED '}  {fault[0]}: {result[1] if result else 'its text is not there once'}", flush=True)
    print(f"{len(faults) - wrong} of {len(faults)} faults noticed")
    sys.exit(wrong != 0 or not faults)


if __name__ == "__main__":
    main()
