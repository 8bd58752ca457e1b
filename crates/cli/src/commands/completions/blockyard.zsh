#compdef blockyard
# Completion of blockyard for zsh. The program itself knows the words that fit.
_blockyard() {
    local line files word
    local -a words_that_fit descriptions unfinished
    {
        read -r files
        while IFS=$'\t' read -r word line; do
            if [[ $word == *[=,] ]]; then
                unfinished+=("$word")
            else
                words_that_fit+=("$word")
                descriptions+=("${word}${line:+  -- $line}")
            fi
        done
    } < <(command blockyard complete -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
    ((${#unfinished})) && compadd -S '' -a unfinished
    ((${#words_that_fit})) && compadd -l -d descriptions -a words_that_fit
    [[ $PREFIX == --*=* ]] && compset -P '*='
    case $files in
        files) _files ;;
        dirs) _files -/ ;;
        commands) _command_names -e ;;
    esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _blockyard "$@"
else
    compdef _blockyard blockyard
fi
