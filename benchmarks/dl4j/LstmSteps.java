import java.util.Locale;
import java.util.Scanner;
import org.deeplearning4j.nn.conf.MultiLayerConfiguration;
import org.deeplearning4j.nn.conf.NeuralNetConfiguration;
import org.deeplearning4j.nn.conf.layers.LSTM;
import org.deeplearning4j.nn.conf.layers.RnnOutputLayer;
import org.deeplearning4j.nn.multilayer.MultiLayerNetwork;
import org.deeplearning4j.nn.weights.WeightInit;
import org.nd4j.linalg.activations.Activation;
import org.nd4j.linalg.api.ndarray.INDArray;
import org.nd4j.linalg.dataset.DataSet;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.linalg.learning.config.Adam;
import org.nd4j.linalg.lossfunctions.LossFunctions;

/**
 * S0's network on its own engine: an LSTM over embeddings that predicts the next embedding at every position.
 *
 * <p>Arguments: width, window, batch. Reads a number of steps a line, does them, and answers with their seconds.
 */
public class LstmSteps {
  public static void main(String[] arguments) {
    int width = Integer.parseInt(arguments[0]);
    int window = Integer.parseInt(arguments[1]);
    int batch = Integer.parseInt(arguments[2]);
    MultiLayerConfiguration configuration =
        new NeuralNetConfiguration.Builder()
            .seed(1)
            .weightInit(WeightInit.XAVIER)
            .updater(new Adam(1e-3))
            .list()
            .layer(new LSTM.Builder().nIn(width).nOut(width).activation(Activation.TANH).build())
            .layer(
                new RnnOutputLayer.Builder(LossFunctions.LossFunction.MSE)
                    .activation(Activation.IDENTITY)
                    .nIn(width)
                    .nOut(width)
                    .build())
            .build();
    MultiLayerNetwork network = new MultiLayerNetwork(configuration);
    network.init();
    INDArray inputs = Nd4j.randn(new int[] {batch, width, window});
    INDArray targets = Nd4j.randn(new int[] {batch, width, window});
    DataSet windows = new DataSet(inputs, targets);
    Scanner lines = new Scanner(System.in);
    while (lines.hasNextInt()) {
      int steps = lines.nextInt();
      long began = System.nanoTime();
      for (int step = 0; step < steps; step++) {
        network.fit(windows);
      }
      System.out.printf(Locale.ROOT, "%.6f%n", (System.nanoTime() - began) / 1e9);
      System.out.flush();
    }
  }
}
