package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"deltabus.dev/cluster/internal/tool"
)

// runBench publishes to a stream like `nats bench js pub async`: each batch is sent at once, and the next one waits until
// it is acknowledged. It prints the duration as one line.
func runBench(args []string) error {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	url := flags.String("url", "nats://127.0.0.1:4222", "address of the server")
	stream := flags.String("stream", "BENCH", "name of the stream, which is made")
	messages := flags.Int("messages", 100_000, "how many")
	size := flags.Int("size", 1024, "bytes of each")
	batch := flags.Int("batch", 1000, "sent before the acknowledgements are waited for")
	subjects := flags.Int("subjects", 1, "over how many subjects they go")
	ids := flags.Bool("ids", false, "with a Nats-Msg-Id each")
	headers := flags.Int("headers", 0, "how many other headers each has")
	headerSize := flags.Int("header-size", 40, "bytes of such a header on the wire, its name and line end included")
	flags.Parse(args)

	connection, err := nats.Connect(*url)
	if err != nil {
		return err
	}
	defer connection.Close()
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(*batch))
	if err != nil {
		return err
	}
	config := jetstream.StreamConfig{Name: *stream, Subjects: []string{*stream + ".>"}, Duplicates: 10 * time.Minute, MaxAge: time.Hour}
	if _, err := js.CreateStream(context.Background(), config); err != nil {
		return err
	}
	payload := make([]byte, *size)
	value := strings.Repeat("x", *headerSize)
	begin := time.Now()
	for sent := 0; sent < *messages; {
		acknowledgements := make([]jetstream.PubAckFuture, 0, *batch)
		for ; len(acknowledgements) < *batch && sent < *messages; sent++ {
			var options []jetstream.PublishOpt
			if *ids {
				options = append(options, jetstream.WithMsgID(fmt.Sprintf("id-%d", sent)))
			}
			message := nats.NewMsg(fmt.Sprintf("%s.%d", *stream, sent%*subjects))
			message.Data = payload
			for i := range *headers {
				name := fmt.Sprintf("ce-%02d", i)
				message.Header[name] = []string{value[:max(*headerSize-len(name)-len(": \r\n"), 0)]}
			}
			acknowledgement, err := js.PublishMsgAsync(message, options...)
			if err != nil {
				return err
			}
			acknowledgements = append(acknowledgements, acknowledgement)
		}
		for _, acknowledgement := range acknowledgements {
			select {
			case <-acknowledgement.Ok():
			case err := <-acknowledgement.Err():
				return err
			}
		}
	}
	seconds := time.Since(begin).Seconds()
	return tool.PrintJSON(map[string]any{"messages": *messages, "seconds": seconds, "per_second": float64(*messages) / seconds})
}
