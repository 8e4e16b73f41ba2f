// What makes a living cluster out of an API server: controllers, a scheduler, nodes that only seem to be, and kubectl,
// in one binary. See ../README.md.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// commands maps a sub-command to the function that runs it with the arguments that follow.
var commands = map[string]func(args []string) error{
	"controllers":             runControllers,
	"kube-controller-manager": runControllerManager,
	"kube-scheduler":          runScheduler,
	"kubectl":                 runKubectl,
	"kwok":                    runKwok,
	"up":                      runUp,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		names := make([]string, 0, len(commands))
		for name := range commands {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: living COMMAND ...\ncommands: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "living %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
