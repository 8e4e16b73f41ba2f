// Command peers plays the Go roles of benches/scenarios/peers: the server that every peer reads, and the peers on
// client-go and controller-runtime. The bench starts it and controls it by lines of text.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

const usage = `usage: peers replay UPSTREAM EVENTS CERTIFICATE KEY
       peers observe PEER URL CA_FILE STRIP PODS EVENTS
       peers versions`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 5 && args[0] == "replay":
		return replay(args[1], args[2], args[3], args[4])
	case len(args) == 7 && args[0] == "observe":
		return observe(args[1], args[2:])
	case len(args) == 1 && args[0] == "versions":
		return versions()
	}
	return fmt.Errorf("unexpected arguments %q\n%s", args, usage)
}

// versions prints the compiled-in versions, one per line.
func versions() error {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return fmt.Errorf("the binary does not say what it was built from")
	}
	fmt.Println("Go", runtime.Version()[len("go"):])
	for _, module := range build.Deps {
		switch module.Path {
		case "k8s.io/client-go":
			fmt.Println("client-go", module.Version)
		case "sigs.k8s.io/controller-runtime":
			fmt.Println("controller-runtime", module.Version)
		}
	}
	return nil
}
