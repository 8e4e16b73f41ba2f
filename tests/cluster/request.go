package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"deltabus.dev/cluster/internal/tool"
)

// answer is the output of `request`: a single JSON value as it is, any other body as a string (a watch, an error page).
type answer struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
}

// runRequest sends one request and prints the answer, whatever its status: `request GET /api/v1/pods`. The body is an
// argument, or stdin for "-".
func runRequest(args []string) error {
	flags := flag.NewFlagSet("request", flag.ExitOnError)
	config := clientFlags(flags)
	contentType := flags.String("content-type", "", "of the body (merge patch for PATCH, else application/json)")
	timeout := flags.Duration("timeout", 30*time.Second, "for the whole exchange; a watch that outlives it prints what came until then")
	flags.Parse(args)
	if flags.NArg() < 2 || flags.NArg() > 3 {
		return errors.New("usage: cluster request --data-dir DIR METHOD PATH [BODY|-]")
	}
	body := io.Reader(strings.NewReader(flags.Arg(2)))
	if flags.Arg(2) == "-" {
		body = os.Stdin
	}
	restConfig, err := config()
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(restConfig)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, flags.Arg(0), restConfig.Host+flags.Arg(1), body)
	if err != nil {
		return err
	}
	switch {
	case *contentType != "":
		request.Header.Set("Content-Type", *contentType)
	case request.Method == http.MethodPatch:
		request.Header.Set("Content-Type", "application/merge-patch+json")
	default:
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil && ctx.Err() == nil {
		return err
	}
	printed := json.RawMessage(text)
	if !json.Valid(text) {
		if printed, err = json.Marshal(string(text)); err != nil {
			return err
		}
	}
	return tool.PrintJSON(answer{Status: response.StatusCode, Body: printed})
}
