// A NATS server for tests, and what its tests need beside it, in one binary. See ../README.md.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// commands maps a sub-command to the function that runs it with the arguments that follow.
var commands = map[string]func(args []string) error{
	"bench":  runBench,
	"keys":   runKeys,
	"server": runServer,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		names := make([]string, 0, len(commands))
		for name := range commands {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: nats COMMAND ...\ncommands: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "nats %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// printJSON writes value as one line on stdout: all that stdout ever carries.
func printJSON(value any) error {
	return json.NewEncoder(os.Stdout).Encode(value)
}
