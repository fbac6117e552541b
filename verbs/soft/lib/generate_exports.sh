#!/bin/sh
# Reads the installed libibverbs and writes what makes ours a stand-in for it: a version script with the same
# symbols in the same nodes (the private node has a number that changes with rdma-core), and a C file with a
# weak, cleanly failing definition of every exported symbol, which our own definitions override at link time.
#
# Names that exist in two versions need the assembler's help: a header, included into every source, binds our
# definition to the newer one.
#
#   generate_exports.sh /usr/lib/x86_64-linux-gnu/libibverbs.so.1 exports.map stand_ins.c symbol_versions.h
set -eu
library=$1 map=$2 stand_ins=$3 versions=$4

readelf -W -V "$library" | awk '
  /^Version definition/ { inside = 1 } /^Version needs/ { inside = 0 }
  inside && / Name: / && !/BASE/ { for (i = 1; i <= NF; ++i) if ($i == "Name:") print $(i + 1) }
' > "$map.nodes"
nm -D --defined-only --with-symbol-versions -S "$library" > "$map.symbols"
if ! [ -s "$map.nodes" ]; then
  echo "generate_exports.sh: no symbol versions in $library; is it rdma-core's libibverbs.so.1?" >&2
  exit 1
fi

awk -v nodes="$map.nodes" '
  BEGIN { while ((getline node < nodes) > 0) order[++count] = node }
  # Absolute symbols name the nodes themselves.
  $(NF - 1) != "A" { split($NF, part, /@+/); in_node[part[2]] = in_node[part[2]] "    " part[1] ";\n" }
  END {
    previous = ""
    for (i = 1; i <= count; ++i) {
      node = order[i]
      printf "%s {\n", node
      if (in_node[node] != "") printf "  global:\n%s", in_node[node]
      if (i == 1) printf "  local: *;\n"
      is_private = node ~ /PRIVATE/
      printf "}%s;\n", (previous != "" && !is_private ? " " previous : "")
      if (!is_private) previous = node
    }
  }
' "$map.symbols" > "$map"

awk '
  function is_pointer(name) {
    if (name ~ /^ibv_cmd_/) return 0
    return name ~ /^(ibv_(alloc|create|open|reg|import|get_device_list|get_device_name|get_sysfs)|_?verbs_(open|init_and_alloc))/
  }
  BEGIN {
    print "// Generated from the installed libibverbs: symbols that the software fabric does not implement."
    print "#include <errno.h>"
  }
  NF < 3 || $(NF - 1) == "A" { next }
  {
    type = $(NF - 1)
    versioned = $NF
    default_version = versioned ~ /@@/
    split(versioned, part, default_version ? "@@" : "@")
    name = part[1]
    if (type ~ /[BDR]/) {
      if (default_version) printf "__attribute__((weak)) unsigned char %s[0x%s];\n", name, $2
      next
    }
    body = is_pointer(name) ? "errno = EOPNOTSUPP; return 0;" : "errno = EOPNOTSUPP; return EOPNOTSUPP;"
    if (default_version) {
      printf "__attribute__((weak)) long %s(void) { %s }\n", name, body
    } else {
      alias = "sluice_old_" name
      printf "long %s(void) { %s }\n", alias, body
      printf "__asm__(\".symver %s, %s\");\n", alias, versioned
    }
  }
' "$map.symbols" > "$stand_ins"
awk '
  BEGIN { print "// Generated from the installed libibverbs." }
  $(NF - 1) == "A" { next }
  $NF ~ /@@/ { split($NF, part, "@@"); newest[part[1]] = part[2]; next }
  { split($NF, part, "@"); older[part[1]] = 1 }
  END {
    for (name in older) {
      if (name in newest) printf "__asm__(\".symver %s, %s@@@%s\");\n", name, name, newest[name]
    }
  }
' "$map.symbols" > "$versions"
rm -f "$map.nodes" "$map.symbols"
