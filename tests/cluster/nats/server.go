package main

import (
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"deltabus.dev/cluster/internal/tool"
)

const readyTimeout = time.Minute

// runServer runs nats-server with its own flags in this process until SIGTERM, or until stdin closes, so that a killed
// parent leaves no orphan. Once clients can connect, it prints its address as one line.
func runServer(args []string) error {
	flags := flag.NewFlagSet("nats-server", flag.ExitOnError)
	options, err := server.ConfigureOptions(flags, args, server.PrintServerAndExit, flags.Usage, server.PrintTLSHelpAndDie)
	if err != nil {
		return err
	}
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		s.Shutdown()
	}()
	s.Start()
	if !s.ReadyForConnections(readyTimeout) {
		return errors.New("not ready in time")
	}
	address, ok := s.Addr().(*net.TCPAddr)
	if !ok {
		return errors.New("it listens nowhere")
	}
	if err := tool.PrintJSON(map[string]any{"port": address.Port}); err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}
