#!/bin/sh
# Checks the style of the C sources: what a compiler does not see. Run by the tests.
#
#     scripts/check_style.sh                    rules, below
#     scripts/check_style.sh --format [STAMP]   and that clang-format would change nothing. STAMP is a file
#                                               that a check without a finding leaves; the next one is of
#                                               what is newer, or of all if the rules are.
#
# Exit code 0, 1 with a line for each finding, or 77 where clang-format is missing.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

library='core models tokenizers datasets'
generated='tokenizers/unicode/unicode_*data.c'

sources()
{
    # shellcheck disable=SC2086  # a list of words
    find "$@" -name '*.[ch]' ! -path "$generated" | sort
}

if [ "${1-}" = --format ]; then
    # Releases of clang-format disagree about details, so one of them decides.
    wanted=14
    tool=
    for candidate in clang-format-$wanted clang-format; do
        version=$($candidate --version 2>/dev/null | sed 's/.*version \([0-9]*\).*/\1/') || true
        if [ "$version" = $wanted ]; then tool=$candidate; fi
    done
    if [ -z "$tool" ]; then
        echo "SKIPPED: clang-format $wanted is not installed"
        exit 77
    fi
    stamp=${2-}
    begun=$(mktemp)
    trap 'rm -f "$begun"' EXIT
    set --
    if [ -e "$stamp" ] && [ -z "$(find .clang-format scripts/check_style.sh -newer "$stamp")" ]; then
        set -- -newer "$stamp"
    fi
    findings=$(find core models tokenizers datasets tools examples tests bench -name '*.[ch]' \
        ! -path "$generated" "$@" -print0 |
        xargs -0 -r -n 50 -P "$jobs" "$tool" --dry-run --Werror 2>&1 |
        sed -n 's/^\([^ ]*\): error: .*/\1/p' | sort)
    if [ -z "$findings" ]; then
        [ -z "$stamp" ] || mv "$begun" "$stamp"
        exit 0
    fi
    echo "clang-format would change:"
    echo "$findings"
    exit 1
fi

# Code only: comments and the insides of strings blanked, lines kept.
# shellcheck disable=SC2016  # awk's dollars
code='
function blank(line,    i, c, two, out) {
    if (comment && line !~ /\*\//) return ""
    if (!comment && line !~ /["\047\/]/) return line
    out = ""
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1); two = substr(line, i, 2)
        if (comment) { if (two == "*/") { comment = 0; i++ } }
        else if (quote != "") {
            if (c == "\\") i++
            else if (c == quote) { quote = ""; out = out c }
        }
        else if (two == "/*") { comment = 1; i++ }
        else if (two == "//") break
        else { if (c == "\"" || c == "\047") quote = c; out = out c }
    }
    quote = ""
    return out
}
FNR == 1 { comment = 0 }
{ line = blank($0) }'

findings=$(
    # Functions that overrun, that lose errors, or that keep hidden state.
    # shellcheck disable=SC2046  # lists of words from here on
    awk "$code"'
    match(line, /(^|[^A-Za-z0-9_.>])(gets|strcpy|strcat|strncpy|strncat|sprintf|vsprintf|atoi|atol|atof|strtok|alloca|rand|srand|tmpnam|mktemp)[ ]*\(/) {
        print FILENAME ":" FNR ": banned function: " substr(line, RSTART, RLENGTH) ")"
    }' $(sources core models tokenizers datasets tools examples)

    # The library never ends its process and writes only where it is told to; its memory comes from
    # mc_malloc and the like, so that tests can fail every allocation in turn; JSON is parsed by
    # mc_json_parse, since cJSON_Parse writes a static pointer.
    # shellcheck disable=SC2046,SC2086
    awk "$code"'
    FILENAME == "core/base/memory.c" { next }
    match(line, /(^|[^A-Za-z0-9_.>])(exit|_exit|_Exit|quick_exit|abort|assert|system|popen|perror|printf|puts|putchar|malloc|calloc|realloc|free|strdup|strndup|asprintf|vasprintf|aligned_alloc|posix_memalign|setenv|putenv|cJSON_Parse[A-Za-z]*|cJSON_GetErrorPtr)[ ]*\(/) {
        print FILENAME ":" FNR ": banned in the library: " substr(line, RSTART, RLENGTH) ")"
    }
    match(line, /(^|[^A-Za-z0-9_])(stdout|stderr)([^A-Za-z0-9_]|$)/) && FILENAME != "core/base/context.c" {
        print FILENAME ":" FNR ": the library does not write to stdout or stderr"
    }
    FILENAME ~ /\.h$/ && FILENAME !~ /_internal\.h$/ && /#include.*_internal\.h/ {
        print FILENAME ":" FNR ": a public header includes a private one"
    }' $(sources $library)

    # Each environment variable that the code reads is in docs/environment.md, and no other. A string
    # that is such a name is taken for one; CMake's options (MC_ENABLE_...) are none.
    # shellcheck disable=SC2046,SC2086
    { find $library tools \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print0 |
        xargs -0 grep -ohE '"(MC|HF)_[A-Z0-9_]+"' | tr -d '"' | grep -v '^MC_ENABLE_' | sort -u; echo; \
        grep -oE '^\|[^|]*\|' docs/environment.md | grep -oE '\b(MC|HF)_[A-Z0-9_]+' |
        sort -u; } | awk '
        /^$/ { page = 1; next }
        !page { read[$0] = 1 }
        page { if ($0 in read) delete read[$0]; else print "docs/environment.md: " $0 " is not read" }
        END { for (name in read) print "docs/environment.md: " name " is missing" }'
    # shellcheck disable=SC2016 # backticks of Markdown
    sed -nE 's/^\| `([A-Z_]+)`.*`([a-z_/]+\.c)` \|$/\1 \2/p' docs/environment.md | while read -r name file; do
        [ -f "$file" ] || file=core/$file
        grep -qs "\"$name\"" "$file" || echo "docs/environment.md: $name is not read in $file"
    done

    # Pages are plain English: words that were bent, or that hide who does what.
    # shellcheck disable=SC2046
    grep -nwEi 'tells|told|whoever|what becomes of|(is|are) handed|where there (is|are) none|one.s own|passed over' \
        README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md $(find docs examples -name '*.md' | sort) /dev/null |
        sed 's/^\([^:]*:[0-9]*\):.*/\1: not plain English: tells, told, whoever, handed, .../' || true

    # So are comments.
    # shellcheck disable=SC2046
    grep -nE '(/\*|^ *\*|//).*\b([Tt]ells|[Tt]old|[Ww]hoever|what becomes of|(is|are) handed|where there (is|are) none|one.s own|passed over)\b' \
        $(sources core models tokenizers datasets tools examples) /dev/null | grep -v '\*told' |
        sed 's/^\([^:]*:[0-9]*\):.*/\1: not plain English: tells, told, whoever, handed, .../' || true

    scripts/check_rooms.py || true # its findings are what it prints
    scripts/figures.py --check || true
    scripts/check_links.py || true

    # shellcheck disable=SC2046
    awk '
    length($0) > 100 && $0 !~ /https?:/ { print FILENAME ":" FNR ": " length($0) " columns, at most 100" }
    /\t/ { print FILENAME ":" FNR ": a tab" }
    /[ \r]$/ { print FILENAME ":" FNR ": white space at the end" }
    /FIX[M]E|TO[D]O/ { print FILENAME ":" FNR ": unfinished" }
    ' $(sources core models tokenizers datasets tools examples tests bench)
)

# Public headers are documentation first: half of their lines and more. Told, not enforced.
for header in $(sources core models tokenizers datasets | grep '[.]h$' | grep -v _internal); do
    awk -v name="$header" '
    /^[ ]*$/ || /^#(ifndef|define|endif|include)/ { next }
    { lines++ }
    comment || /\/\*/ { comments++ }
    /\/\*/ { comment = 1 }
    /\*\// { comment = 0 }
    END { if (2 * comments < lines) printf "note: %s: %d %% comment\n", name, 100 * comments / lines }
    ' "$header"
done

[ -z "$findings" ] && exit 0
echo "$findings"
exit 1
