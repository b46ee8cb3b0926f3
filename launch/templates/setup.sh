declare -A before
for variable in $(compgen -e); do before[$variable]=${!variable}; done

{lines}

# mpirun passes a variable on to other nodes only if it is named: those that the lines above have set.
exported=()
for variable in $(compgen -e); do
    [ "$variable" = _ ] && continue
    [ -v "before[$variable]" ] && [ "${before[$variable]}" = "${!variable}" ] && continue
    exported+=(-x "$variable")
done

