# Completion of blockyard for fish. The program itself knows the words that fit.
function __blockyard_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l answer (command blockyard complete -- $words[2..-1] "$current" 2>/dev/null)
    set -l option (string match -r -- '^--[^=]+=' "$current")
    set -l path (string replace -r -- '^--[^=]+=' '' "$current")
    printf '%s\n' $answer[2..-1]
    switch "$answer[1]"
        case files
            printf "$option%s\n" (__fish_complete_path "$path")
        case dirs
            printf "$option%s\n" (__fish_complete_directories "$path")
        case commands
            printf "$option%s\n" (__fish_complete_command)
    end
end
complete -c blockyard -e
complete -c blockyard -f -k -a '(__blockyard_complete)'
