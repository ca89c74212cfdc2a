#!/bin/sh
# Checks docs/migrating.md against the sources. Run by the tests.
#
#     scripts/check_migrating.sh [FILE]
#
# Every function, macro and type of ours that it names (mc_..., MC_...) has to be in a public header,
# outside of comments; every field (mc_type.field) within the type's struct; every command
# `modelcenter NAME` among the commands, and every --option of the column "here" in the tools. Exit
# code 0, or 1 with a line for each finding.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

page=${1-docs/migrating.md}

# Public headers without comments, and without what a macro of one line hides.
headers=$(find core models tokenizers datasets -name '*.h' ! -name '*_internal.h' | sort)
# shellcheck disable=SC2086  # a list of words
code=$(cat $headers | awk '
    {
        line = $0
        out = ""
        while (line != "") {
            if (comment) {
                at = index(line, "*/")
                if (!at) break
                comment = 0
                line = substr(line, at + 2)
            } else {
                at = index(line, "/*")
                if (!at) { out = out line; break }
                out = out substr(line, 1, at - 1)
                comment = 1
                line = substr(line, at + 2)
            }
        }
        print out
    }')

has_name() { printf '%s\n' "$code" | grep -qE "(^|[^A-Za-z0-9_])$1([^A-Za-z0-9_]|\$)"; }

# Whether a name is declared: of dtypes the macro's rows are.
declared()
{
    has_name "$1" && return 0
    case $1 in
    MC_F32 | MC_F16 | MC_BF16 | MC_I64 | MC_I32 | MC_U8 | MC_BOOL)
        printf '%s\n' "$code" | grep -qE "X\(${1#MC_}, "
        ;;
    *) return 1 ;;
    esac
}

# The text between `typedef struct TYPE {` and `} TYPE;`.
has_field()
{
    printf '%s\n' "$code" | awk -v type="$1" -v field="$2" '
        $0 ~ "^typedef struct " type " [{]" { inside = 1 }
        inside && $0 ~ "(^|[^A-Za-z0-9_])" field "([^A-Za-z0-9_]|$)" { found = 1 }
        $0 ~ "^[}] " type ";" { inside = 0 }
        END { exit !found }'
}

findings=$(
    [ -r "$page" ] || echo "$page: not there"
    names=$(grep -oE '\b(mc|MC)_[A-Za-z0-9_]+' "$page" | sort -u)
    [ "$(echo "$names" | wc -l)" -gt 100 ] || echo "$page: hardly any names"
    for name in $names; do
        declared "$name" || echo "$page: $name is in no public header"
    done
    for field in $(grep -oE '\bmc_[a-z0-9_]+\.[a-z][a-z0-9_]*' "$page" | sort -u); do
        has_field "${field%%.*}" "${field#*.}" || echo "$page: $field is no field"
    done
    for command in $(grep -oE '\bmodelcenter [a-z]+' "$page" | cut -d ' ' -f 2 | sort -u); do
        grep -qE "X\($command," tools/commands.h || echo "$page: modelcenter $command: no command"
    done
    # the last column of the tables; options with '_' are those of launchers
    for option in $(awk -F '|' '/^[|]/ { print $(NF - 1) }' "$page" |
        grep -oE '`[^`]*`' | grep -oE '(^|[` ])--[a-z][a-z_-]*' | tr -d '` ' | grep -v _ | sort -u); do
        grep -qE "ARGS_[A-Z_]+\(\"${option#--}\"" tools/*.[ch] tools/*/*.[ch] ||
            echo "$page: $option: no option"
    done
    # each row has two columns and something to say in the second
    awk -F '|' '/^[|]/ && (NF < 4 || $(NF - 1) ~ /^ *$/) { print FILENAME ":" FNR ": an empty cell" }' \
        "$page"
)

[ -z "$findings" ] && exit 0
echo "$findings"
exit 1
