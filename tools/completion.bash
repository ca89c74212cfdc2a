# The rest of the completion of bash: _modelcenter_commands and _modelcenter_rows stand before it, as
# `modelcenter --help=bash` prints them.

# _modelcenter_kind COMMAND NAME: what an option, or the argument of a number, takes: "flag", "value",
# "file", "files" or "choice" with the choices.
_modelcenter_kind()
{
    local name rest
    while read -r name rest; do
        if [[ $name == "$2" ]]; then
            echo "$rest"
            return
        fi
    done < <(_modelcenter_rows "$1")
}

# _modelcenter_place COMMAND: the option that the current word is a value of, or the word's number among
# the arguments that are neither options nor their values.
_modelcenter_place()
{
    local i word kind option='' place=1
    for ((i = 2; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
        =) ;;
        --*)
            kind=$(_modelcenter_kind "$1" "$word")
            option=$word
            if [[ $kind == flag || -z $kind ]]; then option=''; fi
            ;;
        *)
            if [[ -z $option ]]; then
                place=$((place + 1))
            elif [[ $kind != files ]]; then
                option=''
            fi
            ;;
        esac
    done
    echo "${option:-$place}"
}

_modelcenter()
{
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} kind
    COMPREPLY=()
    if ((COMP_CWORD == 1)) || [[ $command == help ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$_modelcenter_commands help --help --version" -- "$word")
        return
    fi
    if [[ $word == -* ]]; then
        local names
        names=$(_modelcenter_rows "$command" | sed -n 's/^\(--[^ ]*\).*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$names" -- "$word")
        return
    fi
    kind=$(_modelcenter_kind "$command" "$(_modelcenter_place "$command")")
    if [[ $word == = ]]; then word=''; fi
    case $kind in
    choice*) mapfile -t COMPREPLY < <(compgen -W "${kind#choice}" -- "$word") ;;
    file*)
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        compopt -o filenames 2>/dev/null
        ;;
    esac
}

complete -F _modelcenter modelcenter
