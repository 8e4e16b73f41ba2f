// A Kubernetes API server for tests, in one binary: each sub-command is one component or one tool. See README.md.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// commands maps a sub-command to the function that runs it with the arguments that follow.
// What makes a cluster live is another binary, in living/: not every test pays for it.
var commands = map[string]func(args []string) error{
	"apiserver": runAPIServer,
	"apply":     runApply,
	"churn":     runChurn,
	"compact":   runCompact,
	"dump":      runDump,
	"observe":   runObserve,
	"request":   runRequest,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		names := make([]string, 0, len(commands))
		for name := range commands {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: cluster COMMAND --data-dir DIR ...\ncommands: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "cluster %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// printJSON writes value as one line on stdout: all that stdout ever carries.
func printJSON(value any) error {
	return printJSONTo(os.Stdout, value)
}

func printJSONTo(out io.Writer, value any) error {
	return json.NewEncoder(out).Encode(value)
}
