// What makes a living cluster out of an API server: controllers, a scheduler, nodes that only seem to be, and kubectl,
// in one binary. See ../README.md.
package main

import "deltabus.dev/cluster/internal/tool"

// commands maps a sub-command to the function that runs it with the arguments that follow.
var commands = map[string]func(args []string) error{
	"controllers":             runControllers,
	"kube-controller-manager": runControllerManager,
	"kube-scheduler":          runScheduler,
	"kubectl":                 runKubectl,
	"kwok":                    runKwok,
	"up":                      runUp,
}

func main() { tool.Main("living", commands) }
