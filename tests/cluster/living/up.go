package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// runUp starts a whole cluster for interactive use, until ctrl-c: an API server from the binary `cluster` in the same
// directory, and all components of a live cluster.
func runUp(args []string) error {
	flags := flag.NewFlagSet("up", flag.ExitOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: living up --data-dir DIR [FLAGS] [-- KUBE-APISERVER FLAGS]")
		flags.PrintDefaults()
	}
	dataDir := flags.String("data-dir", "", "where all of the cluster lies; a second run with the same directory goes on with it")
	nodes := flags.Int("nodes", 5, "how many nodes there shall be")
	port := flags.Int("secure-port", 0, "port of the API server on 127.0.0.1 (0: as in the last run, else a free one)")
	flags.Parse(args)
	ctx, stop := untilTold()
	defer stop()
	c, err := newControllers(*dataDir)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "starting the API server; logs are in", c.dataDir)
	server, err := c.startServer(ctx, *port, flags.Args())
	if err != nil {
		return err
	}
	defer server.stop()
	defer c.stop()
	fmt.Fprintln(os.Stderr, "starting the controllers and", *nodes, "nodes")
	if err := c.start(ctx, *nodes); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "ready; ctrl-c ends it, the data stays. In another terminal:\n\n"+
		"  export KUBECONFIG=%s\n  %s kubectl create deployment web --image=web --replicas=50\n\n", c.kubeconfig(), c.binary)
	return server.wait(ctx)
}

// server is a process of `cluster apiserver`.
type server struct {
	stdin io.Closer
	ended chan error
}

// startServer starts the API server and returns when it is ready.
func (c *controllers) startServer(ctx context.Context, port int, flags []string) (*server, error) {
	if err := os.MkdirAll(c.dataDir, 0o700); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(c.path("kube-apiserver.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	binary := filepath.Join(filepath.Dir(c.binary), "cluster")
	args := []string{"apiserver", "--data-dir", c.dataDir, "--secure-port", strconv.Itoa(port), "--service-accounts", "--"}
	command := exec.Command(binary, append(args, flags...)...)
	command.Stderr = log
	command.SysProcAttr = ownGroup()
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	s := &server{stdin: stdin, ended: make(chan error, 1)}
	ready := make(chan error, 1)
	go func() {
		_, notReady := bufio.NewReader(stdout).ReadString('\n')
		ready <- notReady
		s.ended <- command.Wait()
		log.Close()
	}()
	select {
	case notReady := <-ready:
		if notReady != nil {
			return nil, fmt.Errorf("the API server ended before it was ready: see %s", log.Name())
		}
		return s, nil
	case <-ctx.Done():
		s.stop()
		return nil, errors.New("told to stop before the API server was ready")
	}
}

// wait returns when the context ends, or when the server exits.
func (s *server) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.ended:
		s.ended <- err
		return errors.Join(errors.New("the API server ended"), err)
	}
}

// stop stops the server cleanly and waits until it has exited.
func (s *server) stop() {
	s.stdin.Close()
	<-s.ended
}
