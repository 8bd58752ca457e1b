# Completion of blockyard for bash 4.4 and newer. The program itself knows the words that fit.
_blockyard() {
    local line=${COMP_LINE:0:COMP_POINT} current=${COMP_WORDS[COMP_CWORD]} words=() word index
    # bash splits words at = and : too. Here a word ends only at a blank.
    for ((index = 0; index <= COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        if ((index == 0)) || [[ $line == [[:space:]]* ]]; then
            line=${line#"${line%%[![:space:]]*}"}
            words+=('')
        fi
        ((index < COMP_CWORD)) || word=$line
        words[-1]+=$word
        line=${line#"$word"}
    done
    # bash replaces only the part behind the last = or :.
    [[ $current == [=:]* ]] && current=
    local whole=${words[-1]} kept candidate about files
    kept=${whole%"$word"}
    [[ $word == [=:]* ]] && kept=$whole
    COMPREPLY=()
    {
        read -r files
        while IFS=$'\t' read -r candidate about; do
            [[ $candidate == *[=,] ]] && compopt -o nospace
            candidate=${candidate#"$kept"}
            printf -v candidate %q "$candidate"
            COMPREPLY+=("$candidate")
        done
    } < <(command blockyard complete -- "${words[@]:1}" 2>/dev/null)
    case $files in
        files)
            if ((${#COMPREPLY[@]})); then
                compopt -o filenames
                mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
            else
                compopt -o default
            fi
            ;;
        dirs) compopt -o plusdirs ;;
        commands) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -c -- "$word") ;;
    esac
}
complete -o nosort -F _blockyard blockyard
